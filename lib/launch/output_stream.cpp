#include "launch/output_stream.h"

#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <fmt/core.h>

#include "base/terminal.h"

namespace mtrain::launch {

namespace {

constexpr size_t kMaxPending = 1 << 20, kChunk = 1 << 16, kPiece = 4096;  // bytes
constexpr std::string_view kLineEnds = "\n\r";

// Returns where the line that holds byte `at` ends, or npos.
size_t line_end(std::string_view text, size_t at) {
  const size_t found = text.find_first_of(kLineEnds, at);
  return found == std::string_view::npos ? found : found + 1;
}

bool ends_line(std::string_view text) {
  return text.empty() || kLineEnds.find(text.back()) != std::string_view::npos;
}

// Writes all of `text`; false: the reader is gone. Calls `on_piece` after each part.
bool write_pieces(int fd, std::string_view text, const std::function<void()>& on_piece) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), std::min(text.size(), kPiece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {  // another program has made the terminal non-blocking
      pollfd p{fd, POLLOUT, 0};
      poll(&p, 1, 1000);
      continue;
    }
    if (n <= 0) return false;
    text.remove_prefix(size_t(n));
    on_piece();
  }
  return true;
}

}  // namespace

void PendingText::add(std::string_view text) {
  text_ += text;
  if (text_.size() > max_bytes_) drop();
}

void PendingText::drop() {
  if (dropped_ == 0) {
    kept_ = within_line_ ? line_end(text_, 0) : 0;
    if (kept_ > max_bytes_ / 2) kept_ = 0;  // a line that does not end is cut
  }
  const size_t from = std::max(kept_, text_.size() - max_bytes_ / 2);
  const size_t to = std::min(line_end(text_, from), text_.size());
  const auto first = text_.begin() + ptrdiff_t(kept_), last = text_.begin() + ptrdiff_t(to);
  const auto lines = std::count_if(
      first, last, [](char c) { return kLineEnds.find(c) != std::string_view::npos; });
  dropped_ += size_t(std::max<ptrdiff_t>(lines, 1));
  text_.erase(first, last);
}

std::string PendingText::take(size_t bytes) {
  if (dropped_) {
    const bool cut = kept_ == 0 && within_line_;
    text_.insert(kept_, fmt::format("{}mtrain-launch: {} lines are left out here: nobody read "
                                    "them in time\n",
                                    cut ? "\n" : "", dropped_));
    dropped_ = 0;
  }
  const std::string taken = text_.substr(0, bytes);
  text_.erase(0, taken.size());
  within_line_ = !ends_line(taken);
  return taken;
}

struct OutputStream::State {
  explicit State(int to) : fd(to) {}
  const int fd;
  std::mutex mutex;
  std::condition_variable changed;
  PendingText pending{kMaxPending};
  bool writing = false, stop = false, gone = false;
  std::chrono::steady_clock::time_point moved = std::chrono::steady_clock::now();
};

OutputStream::OutputStream(int fd) : state_(std::make_shared<State>(fd)) {
  std::thread(write_all, state_).detach();
}

OutputStream::~OutputStream() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void OutputStream::write_all(const std::shared_ptr<State>& s) {
  std::unique_lock lock(s->mutex);
  for (;;) {
    s->changed.wait(lock, [&] { return s->stop || !s->pending.empty(); });
    if (s->stop) return;
    const std::string text = s->pending.take(kChunk);
    s->writing = true;
    lock.unlock();
    const bool read = write_pieces(s->fd, text, [&] {
      const std::lock_guard moved(s->mutex);
      s->moved = std::chrono::steady_clock::now();
    });
    lock.lock();
    s->writing = false;
    s->gone = s->gone || !read;
    s->changed.notify_all();
    if (s->gone) return;
  }
}

std::string OutputStream::fit(std::string_view text) const {
  return fit_terminal(state_->fd, text);
}

void OutputStream::write(std::string_view text) {
  const std::lock_guard lock(state_->mutex);
  if (state_->gone || text.empty()) return;
  if (state_->pending.empty() && !state_->writing) state_->moved = std::chrono::steady_clock::now();
  state_->pending.add(text);
  state_->changed.notify_all();
}

void OutputStream::finish(std::chrono::milliseconds patience,
                          const std::function<bool()>& give_up) {
  std::unique_lock lock(state_->mutex);
  const auto done = [&] { return state_->gone || (state_->pending.empty() && !state_->writing); };
  while (!state_->changed.wait_for(lock, std::chrono::milliseconds(50), done))
    if (std::chrono::steady_clock::now() - state_->moved > patience || give_up()) return;
}

}  // namespace mtrain::launch
