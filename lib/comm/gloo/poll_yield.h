// Gloo's thread polls again at once when the thread of a rank holds the lock that it needs, and so
// keeps the core from that very thread for a whole slice (4 ms) where ranks outnumber cores. This
// program's epoll_wait, which the dynamic linker prefers to the C library's, gives the core away
// first.
#pragma once
#include <cstdint>

namespace mtrain {

void yield_in_polls(bool on);
uint64_t polls_seen();  // so far, by any thread: shows that polls come by here

}  // namespace mtrain
