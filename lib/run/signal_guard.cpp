#include "run/signal_guard.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/terminal.h"
#include "launch/end_signals.h"
#include "launch/job_token.h"

namespace mtrain::run {

namespace {

using launch::kEndSignals;

// The variables of the handler. They belong to the one SignalGuard that the process may have at a
// time.
std::atomic<int> g_received = 0;
std::atomic<int64_t> g_first_ms = 0;  // time of the first signal; 0: none
std::atomic<int64_t> g_last_ms = 0;   // time of the latest signal
std::atomic<int> g_launcher = 0;      // its pid; 0: none
std::atomic<int> g_wakes = -1;        // an eventfd that wakes the watcher; -1: there is none
// The message of a second request. The run writes into the text that is not in use.
constexpr size_t kMaxText = 1024;
char g_texts[2][kMaxText];
std::atomic<int> g_text = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
struct sigaction g_before[std::size(kEndSignals)];

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

void print(const char* text) {
  pollfd output{STDERR_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) <= 0) return;  // a stopped terminal would block
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
}

// Only async-signal-safe calls are allowed here.
void handle(int signal, siginfo_t* info, void*) {
  const int error = errno;
  const int64_t now = now_ms();
  int64_t first = 0;
  const int64_t last = g_last_ms.exchange(now);
  const bool from_launcher = (info->si_code == SI_USER || info->si_code == SI_QUEUE) &&
                             g_launcher != 0 && info->si_pid == g_launcher;
  if (g_first_ms.compare_exchange_strong(first, now)) {
    // The launcher sends SIGTERM with the number of the signal that it received.
    const int original = from_launcher && info->si_code == SI_QUEUE ? info->si_value.sival_int : 0;
    g_received = original ? original : signal;
    const uint64_t one = 1;
    if (g_wakes >= 0) [[maybe_unused]]
      const auto written = write(g_wakes, &one, sizeof one);
    errno = error;
    return;
  }
  // The launcher forwards only the first signal that reaches it, which may be long after this rank
  // received its own. To end ranks immediately it sends SIGKILL.
  const bool from_keyboard = launch::is_keystroke(signal, info->si_code);
  errno = error;
  using std::chrono::milliseconds;
  if (from_launcher || !launch::is_second_request(milliseconds(now - first),
                                                  milliseconds(now - last), from_keyboard))
    return;
  print(g_texts[g_text]);
  launch::remove_own_token_file();
  _exit(128 + signal);
}

}  // namespace

// Waits in a thread for the first signal.
class SignalGuard::Watcher {
 public:
  explicit Watcher(std::function<void()> on_request)
      : wakes_(eventfd(0, EFD_CLOEXEC)), on_request_(std::move(on_request)) {
    if (wakes_ < 0) throw RunError(fmt::format("eventfd: {}", std::strerror(errno)));
    g_wakes = wakes_;
    thread_ = std::thread([this] {
      uint64_t count = 0;
      while (read(wakes_, &count, sizeof count) < 0 && errno == EINTR) {
      }
      if (!ends_ && on_request_) on_request_();
    });
  }
  ~Watcher() {
    g_wakes = -1;
    ends_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wakes_, &one, sizeof one);
    thread_.join();
    close(wakes_);
  }

 private:
  const int wakes_;
  const std::function<void()> on_request_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

SignalGuard::SignalGuard(std::function<void()> on_request) {
  g_received = 0;
  set_unsaved("");
  g_first_ms = 0;
  const char* launcher = std::getenv(launch::kLauncherPid);
  g_launcher = launcher ? std::atoi(launcher) : 0;
  watcher_ = std::make_unique<Watcher>(std::move(on_request));
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

void SignalGuard::set_unsaved(std::string_view text) {
  const int other = 1 - g_text;
  // The current line on the terminal may be incomplete.
  const std::string line =
      (isatty(STDERR_FILENO) ? "\r\x1b[K" : "") +
      fit_terminal(STDERR_FILENO, fmt::format("mtrain: ended at once, without saving{}{}",
                                              text.empty() ? "" : ": ", text)) +
      "\n";
  const size_t bytes = std::min(line.size(), kMaxText - 1);
  std::memcpy(g_texts[other], line.data(), bytes);
  g_texts[other][bytes] = 0;
  g_text = other;
}

}  // namespace mtrain::run
