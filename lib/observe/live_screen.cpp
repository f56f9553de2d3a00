#include "observe/live_screen.h"

#include <unistd.h>
#include <algorithm>

#include "base/terminal.h"

namespace mtrain::observe {

namespace {

constexpr int kEnds[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kEnds) sigaddset(&set, signal);
  sigaddset(&set, SIGTSTP);
  sigaddset(&set, SIGWINCH);
  return set;
}

}  // namespace

LiveScreen::LiveScreen(int fd) : fd_(fd) {
  const sigset_t set = watched_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  enter();
}

LiveScreen::~LiveScreen() {
  leave();
  write_all(fd_, last_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void LiveScreen::enter() const { write_all(fd_, "\x1b[?1049h\x1b[?25l"); }
void LiveScreen::leave() const { write_all(fd_, "\x1b[?25h\x1b[?1049l"); }

void LiveScreen::draw(std::string_view picture) {
  last_ = picture;
  std::string out = "\x1b[H";
  const int height = terminal_height(fd_);
  for (int line = 0; line < height && !picture.empty(); ++line) {
    const size_t end = std::min(picture.find('\n'), picture.size());
    if (line > 0) out += "\r\n";
    out += picture.substr(0, end);
    out += "\x1b[K";
    picture.remove_prefix(std::min(end + 1, picture.size()));
  }
  write_all(fd_, out + "\x1b[J");
}

void LiveScreen::pause(std::chrono::milliseconds time) {
  const sigset_t set = watched_signals();
  const timespec wait{.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1'000'000};
  const int signal = ::sigtimedwait(&set, nullptr, &wait);
  if (signal == SIGTSTP) {  // Ctrl-Z; the picture is shown again when the process continues
    leave();
    ::raise(SIGSTOP);
    enter();
  } else if (std::ranges::count(kEnds, signal) > 0) {
    leave();
    write_all(fd_, last_);
    std::signal(signal, SIG_DFL);
    ::raise(signal);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);  // the signal ends the process here
  }
}

}  // namespace mtrain::observe
