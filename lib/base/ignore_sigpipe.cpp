#include "base/ignore_sigpipe.h"

#include <csignal>

namespace mtrain {

IgnoreSigpipe::IgnoreSigpipe() : before_(std::signal(SIGPIPE, SIG_IGN)) {}
IgnoreSigpipe::~IgnoreSigpipe() { std::signal(SIGPIPE, before_); }

bool sigpipe_is_deadly() {
  struct sigaction action {};
  return sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL;
}

}  // namespace mtrain
