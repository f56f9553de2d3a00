#include "launch/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

#include "launch/end_signals.h"

namespace mtrain::launch {

EndRequests::Kind EndRequests::add(int signal, Clock::time_point at, bool from_keyboard) {
  const auto last = std::exchange(last_, at);
  if (signal_ == 0) {
    signal_ = signal;
    first_ = at;
    return Kind::first;
  }
  if (std::exchange(of_other_, false)) {
    first_ = at;
    return Kind::repeat;
  }
  using std::chrono::floor, std::chrono::milliseconds;
  return is_second_request(floor<milliseconds>(at - first_), floor<milliseconds>(at - last),
                           from_keyboard)
             ? Kind::second
             : Kind::repeat;
}

EndRequests::Kind EndRequests::add_of_other(int signal, Clock::time_point at) {
  if (signal_ != 0) return Kind::repeat;
  of_other_ = true;
  signal_ = signal;
  first_ = last_ = at;
  return Kind::first;
}

Signals::Signals() {
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  sigaddset(&handled, SIGWINCH);
  for (const int s : kEndSignals) {
    // Ignored signals must stay ignored, such as SIGHUP under nohup: a blocked one would arrive
    // through the descriptor.
    struct sigaction action;
    sigaction(s, nullptr, &action);
    if (!may_be_ignored(s) || action.sa_handler != SIG_IGN) sigaddset(&handled, s);
  }
  sigprocmask(SIG_BLOCK, &handled, &before_);
  fd_ = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
}

Signals::~Signals() {
  close(fd_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int Signals::next() {
  signalfd_siginfo info;
  while (read(fd_, &info, sizeof info) == sizeof info)
    if (info.ssi_signo != SIGCHLD) {
      from_keyboard_ = is_keystroke(int(info.ssi_signo), info.ssi_code);
      return int(info.ssi_signo);
    }
  return 0;
}

}  // namespace mtrain::launch
