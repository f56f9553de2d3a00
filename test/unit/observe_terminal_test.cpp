#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "base/terminal.h"
#include "observe/banner.h"
#include "observe/progress.h"
#include "test/support/environment.h"

namespace observe_terminal_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Contains;

namespace {

// A terminal of `columns`, and a screen of one line that obeys \r, \n and "clear to the end of the
// line".
class FakeTerminal {
 public:
  explicit FakeTerminal(int columns) : columns_(columns) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    REQUIRE(::openpty(&master_, &slave_, nullptr, nullptr, &size) == 0);
  }
  ~FakeTerminal() {
    ::close(master_);
    ::close(slave_);
  }
  int fd() const { return slave_; }

  // Returns all bytes written so far. Sets `lines` and `line` to what a person sees: finished
  // lines, and the line that is being drawn.
  std::string read() {
    // The terminal forwards bytes with a delay, so this reads up to a mark after all of them.
    REQUIRE(::write(slave_, "\x01", 1) == 1);
    std::string out;
    while (out.empty() || out.back() != '\x01') {
      char piece[4096];
      const ssize_t n = ::read(master_, piece, sizeof(piece));
      REQUIRE(n > 0);
      out.append(piece, size_t(n));
    }
    out.pop_back();
    show(out);
    return out;
  }
  std::vector<std::string> lines;
  std::string line;

 private:
  void show(const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        cursor_ = 0;
      } else if (text[i] == '\n') {
        lines.push_back(line);
        line.clear();
        cursor_ = 0;
      } else if (text.compare(i, 3, "\x1b[K") == 0) {
        line.resize(cursor_);
        i += 2;
      } else if (text[i] == '\x1b') {
        i = text.find('m', i);
      } else {
        line.resize(std::max(line.size(), cursor_ + 1), ' ');
        line[cursor_++] = text[i];
        REQUIRE(line.size() < size_t(columns_));  // a line that fills the last column may wrap
      }
    }
  }
  int master_ = -1, slave_ = -1, columns_;
  size_t cursor_ = 0;
};

StepProgress some_step(int64_t step) {
  return {.step = step,
          .total = 2000,
          .loss = 2.34567,
          .lr = 3e-4,
          .grad_norm = 0.987,
          .tokens_per_s = 12345,
          .mfu = 0.4512,
          .step_s = 0.5};
}

}  // namespace

TEST_CASE("a progress line leaves out the least important fields to fit") {
  StepProgress p = some_step(120);
  p.eta_s = 190;
  CHECK(format_progress(p, 0) ==
        "step  120/2000  loss 2.3457  lr 3.00e-04  grad 0.987  12.3K tok/s  MFU 45.1 %  ETA 3 min "
        "10 s");
  CHECK(format_progress(p, 200, Bar::yes) ==
        "step  120/2000  [#...................]  loss 2.3457  lr 3.00e-04  grad 0.987  12.3K tok/s"
        "  MFU 45.1 %  ETA 3 min 10 s");
  CHECK(format_progress(p, 79, Bar::yes) ==
        "step  120/2000  [.......]  loss 2.3457  12.3K tok/s  MFU 45.1 %  ETA 3 min 10 s");
  CHECK(format_progress(p, 59, Bar::yes) ==
        "step  120/2000  [............]  loss 2.3457  ETA 3 min 10 s");
  CHECK(format_progress(p, 30, Bar::yes) == "step  120/2000  loss 2.3457");
  CHECK(format_progress(p, 40) == "step  120/2000  loss 2.3457");
  p.mfu = 1.03;
  CHECK_THAT(format_progress(p, 0), Contains("tok/s  MFU: peak mismeasured  ETA"));
  p.mfu = 0.4512;
  CHECK(format_progress(p, 46) == "step  120/2000  loss 2.3457  ETA 3 min 10 s");
  CHECK(format_progress(p, 10) == "step  120/");
  size_t longest = 0;
  for (int width = 1; width < 150; ++width) {
    const auto line = format_progress(p, width, Bar::yes);
    REQUIRE(display_width(line) <= width);
    longest = std::max(longest, line.size());
  }
  CHECK(longest == format_progress(p, 200, Bar::yes).size());
  CHECK(format_progress({.step = 1, .total = 9, .loss = 2}, 0) == "step 1/9  loss 2.0000");
  CHECK_THAT(format_progress({.step = 1, .total = 9, .loss = NAN, .eta_s = INFINITY}, 0),
             Contains("loss nan"));
}

TEST_CASE("on a terminal of any width lines stay above one live line") {
  const int columns = GENERATE(16, 30, 79, 200);
  FakeTerminal terminal(columns);
  const Environment term("TERM", "xterm"), ci("CI", nullptr);
  ProgressLine progress({.out = terminal.fd(),
                         .err = terminal.fd(),
                         .live = true,
                         .color = true,
                         .min_interval_s = 0});
  for (int64_t step = 1; step <= 5; ++step) progress.update(some_step(step), step % 2 == 0);
  CHECK_THAT(terminal.read(), Contains("\r") && Contains("\x1b[K"));
  REQUIRE(terminal.lines.size() == 2);
  CHECK_THAT(terminal.lines[0], Contains("step    2/"));
  CHECK_THAT(terminal.lines[1], Contains("step    4/"));
  CHECK_THAT(terminal.line, Contains("step    5/"));
  CHECK((terminal.line.find("[....") != std::string::npos) == (columns >= 79));
  progress.note("saved x");
  terminal.read();
  CHECK(terminal.lines.back() == "saved x");
  CHECK_THAT(terminal.line, Contains("step    5/"));
  progress.activity("saving");
  terminal.read();
  CHECK(terminal.line == "saving");
  progress.idle();
  terminal.read();
  CHECK_THAT(terminal.line, Contains("step    5/"));
  progress.finish();
  terminal.read();
  REQUIRE(terminal.lines.size() == 4);
  CHECK_THAT(terminal.lines[3], Contains("step    5/"));
  CHECK(terminal.line.empty());
}

TEST_CASE("drawing is limited in rate, and the last step always gets a line") {
  FakeTerminal terminal(100);
  ProgressLine progress({.out = terminal.fd(),
                         .err = terminal.fd(),
                         .live = true,
                         .color = false,
                         .min_interval_s = 60});
  for (int64_t step = 1; step <= 50; ++step) progress.update(some_step(step), false);
  terminal.read();
  CHECK_THAT(terminal.line, Contains("step    1/2000"));
  progress.finish();
  terminal.read();
  REQUIRE(terminal.lines.size() == 1);
  CHECK_THAT(terminal.lines[0], Contains("step   50/2000"));
}

TEST_CASE("lines that stay on a terminal fit it, and the record has its own form") {
  FakeTerminal terminal(40);
  std::string record;
  {
    ProgressLine progress({.out = terminal.fd(), .err = terminal.fd(), .live = false});
    log::set_record(nullptr);  // forgets what other tests have logged
    log::set_record([&](std::string_view lines) { record += lines; });
    progress.note("saved a folder with a long name, and more than a line about it");
    progress.tell([](int columns) {
      return wrap_command("to continue: mtrain r.yaml a=1 b=2 c=3", columns);
    });
    log::set_record(nullptr);
  }
  terminal.read();
  CHECK(terminal.lines == std::vector<std::string>{"saved a folder with a long name, and",
                                                   "  more than a line about it",
                                                   "to continue: mtrain r.yaml a=1 b=2 c=3"});
  CHECK(record ==
        "saved a folder with a long name, and more than a line about it\n"
        "to continue: mtrain r.yaml a=1 b=2 c=3\n");
}

TEST_CASE("log lines do not tear the live line") {
  FakeTerminal terminal(100);
  // The log writes to stderr, so the terminal replaces stderr for a while.
  const int saved = ::dup(2);
  ::dup2(terminal.fd(), 2);
  {
    ProgressLine progress(
        {.out = terminal.fd(), .err = 2, .live = true, .color = false, .min_interval_s = 0});
    progress.update(some_step(7), false);
    std::thread other([] {
      for (int i = 0; i < 20; ++i) log::warn("something");
    });
    for (int64_t step = 8; step <= 30; ++step) progress.update(some_step(step), false);
    other.join();
    progress.finish();
    log::warn("later");
  }
  log::warn("after");
  ::dup2(saved, 2);
  ::close(saved);
  terminal.read();
  REQUIRE(terminal.lines.size() == 23);
  for (int i = 0; i < 20; ++i) CHECK(terminal.lines[size_t(i)] == "warning: something");
  CHECK_THAT(terminal.lines[20], Contains("step   30/2000"));
  CHECK(terminal.lines[21] == "warning: later");
  CHECK(terminal.lines[22] == "warning: after");
}

namespace {
// A pipe, and the text that was written to it.
class Pipe {
 public:
  Pipe() { REQUIRE(::pipe(ends_) == 0); }
  ~Pipe() { ::close(ends_[0]); }
  int fd() const { return ends_[1]; }
  void await() const {  // until something is written
    pollfd p{ends_[0], POLLIN, 0};
    REQUIRE(::poll(&p, 1, 10000) == 1);
  }
  std::string close_and_read() {
    ::close(ends_[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(ends_[0], buffer, sizeof(buffer))) > 0;)
      text.append(buffer, size_t(n));
    return text;
  }

 private:
  int ends_[2];
};
}  // namespace

TEST_CASE("without a terminal lines that stay go to stdout, and nothing else does") {
  Pipe out, err;
  {
    ProgressLine progress({.out = out.fd(), .err = err.fd(), .quiet_s = 60});
    progress.update(some_step(1), true);
    progress.update(some_step(2), false);
    progress.activity("saving");
    progress.note("saved x");
    progress.tell("Ctrl-C: step 3 ends first");
    progress.update(some_step(2000), true);
  }
  CHECK(out.close_and_read() ==
        "step    1/2000  loss 2.3457  lr 3.00e-04  grad 0.987  12.3K tok/s  MFU 45.1 %"
        "  ETA 16 min 40 s\n"  // 1999 steps of 0.5 s
        "saved x\n"
        "step 2000/2000  loss 2.3457  lr 3.00e-04  grad 0.987  12.3K tok/s  MFU 45.1 %\n");
  CHECK(err.close_and_read() == "Ctrl-C: step 3 ends first\n");
}

TEST_CASE("without a terminal an activity that takes long is reported now and then") {
  Pipe out, err;
  {
    ProgressLine progress({.out = out.fd(), .err = err.fd(), .quiet_s = 0.02, .quiet_again_s = 60});
    progress.activity("saving 1");
    err.await();  // the activity does not report again by itself
    for (int i = 2; i < 5; ++i) progress.activity(fmt::format("saving {}", i));
    progress.idle();
  }
  ProgressLine({.out = out.fd(), .err = err.fd()}).activity("reading");  // has only begun
  CHECK(out.close_and_read().empty());
  CHECK(err.close_and_read() == "saving 1\n");
}

TEST_CASE("nothing is drawn on a terminal to which the reader of stdout may write") {
  const FakeTerminal terminal(100);
  const Environment term("TERM", "xterm"), ci("CI", nullptr);
  Pipe out;
  CHECK_FALSE(ProgressLine({.out = out.fd(), .err = terminal.fd()}).live());
  CHECK(ProgressLine({.out = terminal.fd(), .err = terminal.fd()}).live());
  const int file = ::open("/dev/null", O_WRONLY);
  CHECK(ProgressLine({.out = file, .err = terminal.fd()}).live());
  ::close(file);
  out.close_and_read();
}

TEST_CASE("the record of the log has every line that stays, those of before included") {
  Pipe out, err;
  std::string text;
  {
    ProgressLine progress({.out = out.fd(), .err = err.fd()});
    log::set_record(nullptr);  // forgets what other tests have logged
    progress.note("before");
    log::set_record([&](std::string_view lines) { text += lines; });
    progress.update(some_step(2000), true);
    progress.banner("mtrain", {{"model", "llama"}});
    log::warn("careful");
    log::set_record(nullptr);
    progress.note("after");
  }
  out.close_and_read();
  err.close_and_read();
  CHECK(text ==
        "before\n"
        "step 2000/2000  loss 2.3457  lr 3.00e-04  grad 0.987  12.3K tok/s  MFU 45.1 %\n"
        "mtrain\n  model  llama\n"
        "warning: careful\n");
}

TEST_CASE("a banner aligns its columns and wraps between words") {
  CHECK(banner("mtrain", {{"model", "llama"}, {"größe", "3M"}, {"x", ""}}, 80) ==
        "mtrain\n"
        "  model  llama\n"
        "  größe  3M\n"
        "  x      \n");
  CHECK(banner("t", {{"memory", "aaaa bbbb cccc dddd eeee ffff"}, {"n", "one\ntwo"}}, 30) ==
        "t\n"
        "  memory  aaaa bbbb cccc dddd\n"
        "          eeee ffff\n"
        "  n       one\n"
        "          two\n");
  // A word longer than the column is cut; no line is wider than asked.
  CHECK(banner("t", {{"a", std::string(45, 'x')}}, 25) ==
        "t\n  a  " + std::string(20, 'x') + "\n     " + std::string(20, 'x') + "\n     xxxxx\n");
  FakeTerminal terminal(40);
  print_banner(terminal.fd(), "t", {{"path", std::string(100, 'y')}});
  CHECK_THAT(terminal.read(), Contains("path"));
}

}  // namespace observe_terminal_test
