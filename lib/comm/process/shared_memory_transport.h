// Ranks as processes of one host. The memory of a group's channel is an anonymous file, which the
// group's first rank makes and the other ranks open through /proc. Nothing remains when the
// processes die.
#pragma once
#include <chrono>
#include <memory>

#include "comm/world.h"
#include "store/store.h"

namespace mtrain::comm {

// Every rank of the world calls it. Throws UserError when the ranks are not all on this host.
std::shared_ptr<Transport> shared_memory_transport(std::shared_ptr<store::Store> store, int rank,
                                                   int size, std::chrono::nanoseconds timeout);

}  // namespace mtrain::comm
