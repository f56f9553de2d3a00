#include "run/signal_guard.h"

#include <poll.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>

#include "launch/end_signals.h"

namespace mtrain::run {

namespace {

using launch::kEndSignals;

// What the handler reads and writes. The process has one SignalGuard at a time, to which they
// belong.
std::atomic<int> g_received = 0;
std::atomic<int64_t> g_first_ms = 0;  // when the first signal came; 0: none has
std::atomic<int> g_launcher = 0;      // its pid; 0: none
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
struct sigaction g_before[std::size(kEndSignals)];

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

void handle(int signal, siginfo_t* info, void*) {
  const int64_t now = now_ms();
  int64_t first = 0;
  if (g_first_ms.compare_exchange_strong(first, now)) {
    g_received = signal;
    return;
  }
  // The launcher passes on the first signal that reaches it, however long ago this rank got its
  // own. To end ranks at once it sends SIGKILL.
  const bool from_launcher =
      info->si_code == SI_USER && g_launcher != 0 && info->si_pid == g_launcher;
  if (from_launcher || now - first < launch::kSameRequest.count()) return;
  constexpr char kText[] = "mtrain: a second signal: ending at once, without saving\n";
  pollfd output{STDERR_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) > 0)  // a terminal that is stopped would block
      [[maybe_unused]]
    const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(128 + signal);
}

}  // namespace

SignalGuard::SignalGuard() {
  g_received = 0;
  g_first_ms = 0;
  const char* launcher = std::getenv(launch::kLauncherPid);
  g_launcher = launcher ? std::atoi(launcher) : 0;
  struct sigaction action {};
  action.sa_sigaction = handle;
  sigemptyset(&action.sa_mask);
  for (const int s : kEndSignals) sigaddset(&action.sa_mask, s);
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (size_t i = 0; i < std::size(kEndSignals); ++i) {
    sigaction(kEndSignals[i], &action, &g_before[i]);
    const bool off = launch::may_be_ignored(kEndSignals[i]) && g_before[i].sa_handler == SIG_IGN;
    if (off) sigaction(kEndSignals[i], &g_before[i], nullptr);
  }
}

SignalGuard::~SignalGuard() {
  for (size_t i = 0; i < std::size(kEndSignals); ++i)
    sigaction(kEndSignals[i], &g_before[i], nullptr);
}

int SignalGuard::signal() const { return g_received; }

}  // namespace mtrain::run
