#include "run/signal_guard.h"

#include <unistd.h>
#include <csignal>
#include <ctime>
#include <iterator>

namespace mtrain::run {

namespace {
// A signal handler may only access global variables of this type. The process has one SignalGuard
// at a time, to which they belong.
volatile std::sig_atomic_t g_received = 0;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
struct sigaction g_before[std::size(kSignals)];

// The first signal may come twice at once: from the launcher, and from whoever signalled the
// launcher.
constexpr time_t kSameSeconds = 1;
volatile std::sig_atomic_t g_received_at = 0;

void handle(int signal) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (g_received && now.tv_sec - g_received_at > kSameSeconds) _exit(128 + signal);
  if (g_received) return;
  g_received = signal;
  g_received_at = std::sig_atomic_t(now.tv_sec);
}
}  // namespace

SignalGuard::SignalGuard() {
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &action, &g_before[i]);
    const bool off = kSignals[i] == SIGHUP && g_before[i].sa_handler == SIG_IGN;
    if (off) sigaction(kSignals[i], &g_before[i], nullptr);
  }
}

SignalGuard::~SignalGuard() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &g_before[i], nullptr);
}

int SignalGuard::signal() const { return g_received; }

}  // namespace mtrain::run
