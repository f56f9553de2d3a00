// Replaces epoll_wait in every program that links the object library mtrain_epoll_interposer: each
// call gives the core away first. Gloo's thread polls again at once while the thread of a rank
// holds the lock that it needs, and where ranks outnumber cores it would keep that very thread from
// its core for a whole slice of time (4 ms). No library of the house links this by itself.
#pragma once
#include <cstdint>

namespace mtrain::comm {

void yield_in_polls(bool on);  // on from the start; off to measure what it gains
uint64_t polls_seen();         // calls so far, by any thread: shows that polls come by here

}  // namespace mtrain::comm
