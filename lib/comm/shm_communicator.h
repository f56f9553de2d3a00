// Collectives of ranks that share memory: threads of a process, or processes of a host.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "comm/shared_memory_channel.h"

namespace mtrain::comm {

// `keep` owns the channel's memory. Sums are formed in the order of the ranks: every rank gets the
// same bits, whichever data arrives first.
std::unique_ptr<Communicator> shm_communicator(SharedMemoryChannel channel,
                                               std::shared_ptr<void> keep);

}  // namespace mtrain::comm
