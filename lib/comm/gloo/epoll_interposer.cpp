#include "comm/gloo/epoll_interposer.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/epoll.h>
#include <atomic>

namespace {
// These are global since epoll_wait() below serves the whole process.
std::atomic<bool> g_yields{true};
std::atomic<uint64_t> g_polls{0};
}  // namespace

// The dynamic linker prefers a program's own function to the C library's.
extern "C" int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  using Poll = int (*)(int, epoll_event*, int, int);
  // The next definition may belong to a sanitizer, which must see the call too.
  static const auto next = reinterpret_cast<Poll>(dlsym(RTLD_NEXT, "epoll_wait"));
  g_polls.fetch_add(1, std::memory_order_relaxed);
  if (g_yields.load(std::memory_order_relaxed)) sched_yield();
  return next(fd, events, most, timeout);
}

namespace mtrain::comm {

void yield_in_polls(bool on) { g_yields = on; }
uint64_t polls_seen() { return g_polls; }

}  // namespace mtrain::comm
