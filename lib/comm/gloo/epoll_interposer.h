// Replaces epoll_wait in every program that links the object library mtrain_epoll_interposer: each
// call first yields the core to other threads. Gloo's polling thread calls epoll_wait again at once
// while a rank's thread holds the lock that it needs. If ranks outnumber cores, this would keep
// that rank's thread off the core for a full time slice (4 ms). Only programs link it; no library
// of mtrain does.
#pragma once
#include <cstdint>

namespace mtrain::comm {

void yield_in_polls(bool on);  // it is on at the start; turning it off shows what it gains
uint64_t polls_seen();         // calls of epoll_wait so far, by any thread; for tests

}  // namespace mtrain::comm
