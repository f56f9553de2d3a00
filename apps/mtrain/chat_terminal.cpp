#include "chat_terminal.h"

#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/terminal.h"

namespace mtrain {

namespace {

std::atomic<int> g_interrupts = 0;  // Ctrl-C since the last message
static_assert(std::atomic<int>::is_always_lock_free);

void count_interrupt(int) { ++g_interrupts; }

class ChatTerminal {
 public:
  ChatTerminal() : shows_(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {}

  // The handler is installed with the first message: before, Ctrl-C ends the program.
  std::optional<std::string> next() {
    if (!handles_) {
      struct sigaction action {};
      action.sa_handler = count_interrupt;  // without SA_RESTART: it ends a read
      sigaction(SIGINT, &action, nullptr);
      handles_ = true;
      if (shows_) write("Ctrl-C ends an answer; Ctrl-C twice or Ctrl-D ends the chat.\n");
    }
    while (true) {
      if (shows_) write("> ");
      std::optional<std::string> line = read_line();
      if (!line) {
        if (shows_) write("\n");
        return std::nullopt;
      }
      if (trim(*line).empty()) continue;
      g_interrupts = 0;
      return line;
    }
  }

  bool interrupts() const { return g_interrupts > 0; }

  void write(std::string_view bytes) const {
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout))
      throw RunError(fmt::format("cannot write the text: {}", std::strerror(errno)));
  }

 private:
  // Returns nothing at the end of the input, and after two interrupts.
  std::optional<std::string> read_line() {
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      if (g_interrupts >= 2) return std::nullopt;
      char bytes[4096];
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n > 0) {
        buffer_.append(bytes, size_t(n));
      } else if (n < 0 && errno == EINTR) {
        if (g_interrupts < 2 && shows_) write("\n(Ctrl-C again ends the chat)\n> ");
        buffer_.clear();
      } else if (n < 0) {
        throw RunError(fmt::format("cannot read the messages: {}", std::strerror(errno)));
      } else if (buffer_.empty()) {
        return std::nullopt;
      } else {
        return std::exchange(buffer_, "");  // a last line without a line feed
      }
    }
  }

  const bool shows_;
  bool handles_ = false;
  std::string buffer_;
};

}  // namespace

void run_chat_on_terminal(const run::ChatJob& job, const generate::GenerateOptions& options) {
  ChatTerminal terminal;
  const run::ChatPartner partner{
      .next = [&] { return terminal.next(); },
      .text = [&](std::string_view text) { terminal.write(text); },
      .interrupts = [&] { return terminal.interrupts(); },
      .end =
          [&](generate::End end) {
            terminal.write("\n");
            if (end == generate::End::tokens)
              log::info(fmt::format("the answer was cut after {} tokens; --tokens allows more",
                                    options.tokens));
            if (end == generate::End::context)
              log::info("the answer was cut: the model's context is full");
          },
      .stopped = [&] { terminal.write("\n"); }};
  run::chat(job, options, partner);
}

}  // namespace mtrain
