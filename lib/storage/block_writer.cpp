#include "storage/block_writer.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "storage/file_sums.h"

namespace mtrain::storage {

BlockWriter::BlockWriter(const std::filesystem::path& path, int64_t bytes, int threads, bool hashes)
    : file_(path), bytes_(bytes), threads_(threads), hashes_(hashes) {
  MT_CHECK(threads > 0 && bytes >= 0, "{} threads, {} bytes", threads, bytes);
  file_.reserve(bytes);
  if (hashes_) digests_.resize(size_t(ceil_div(bytes, kSumsBlock)));
}

BlockWriter::~BlockWriter() { stop(); }

void BlockWriter::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : workers_) t.join();
  workers_.clear();
}

std::span<std::byte> BlockWriter::space() {
  if (current_.memory && current_.bytes == size_t(kSumsBlock)) hand_over();
  if (!current_.memory) {
    std::unique_lock lock(mutex_);
    const bool may_add = blocks_ < threads_ + 2;
    if (!may_add) changed_.wait(lock, [&] { return !free_.empty() || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    if (!free_.empty()) {
      current_.memory = std::move(free_.back());
      free_.pop_back();
    } else {
      current_.memory = aligned_bytes(size_t(kSumsBlock));
      ++blocks_;
    }
    current_.at = written_, current_.bytes = 0;
  }
  return {current_.memory.get() + current_.bytes, size_t(kSumsBlock) - current_.bytes};
}

void BlockWriter::advance(size_t bytes) {
  MT_CHECK(current_.memory && bytes <= size_t(kSumsBlock) - current_.bytes, "{} bytes", bytes);
  current_.bytes += bytes, written_ += int64_t(bytes);
}

void BlockWriter::write(const void* data, size_t bytes) {
  for (const char* next = static_cast<const char*>(data); bytes > 0;) {
    const std::span<std::byte> to = space();
    const size_t n = std::min(bytes, to.size());
    std::memcpy(to.data(), next, n);
    advance(n);
    next += n, bytes -= n;
  }
}

// Gives the full block to the threads. They start when the first block is full.
void BlockWriter::hand_over() {
  {
    const std::scoped_lock lock(mutex_);
    full_.push_back(std::move(current_));
    try {
      if (int(workers_.size()) < threads_) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error& e) {
      if (workers_.empty()) throw RunError(fmt::format("no thread can be started: {}", e.what()));
    }
  }
  current_ = {};
  changed_.notify_all();
}

// Hashes a block while it is in the cache, and writes it. The last one may end within a page.
void BlockWriter::store(const Block& block) {
  if (hashes_) {
    std::string digest = ContentHash().add(block.memory.get(), block.bytes).hex();
    const std::scoped_lock lock(mutex_);
    const auto index = size_t(block.at / kSumsBlock);
    digests_.resize(std::max(digests_.size(), index + 1));
    digests_[index] = std::move(digest);
  }
  const size_t rest = block.bytes % size_t(kDirectAlignment), direct = block.bytes - rest;
  if (direct > 0) file_.write_block(block.at, block.memory.get(), direct);
  if (rest > 0) file_.write_at(block.at + int64_t(direct), block.memory.get() + direct, rest);
}

void BlockWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !full_.empty(); });
    if (stop_) return;
    Block block = std::move(full_.front());
    full_.pop_front();
    ++writing_;
    if (!failure_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        store(block);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !failure_) failure_ = failure;
    }
    --writing_;
    free_.push_back(std::move(block.memory));
    changed_.notify_all();
  }
}

void BlockWriter::commit() {
  MT_CHECK(written_ == bytes_, "{} bytes of {}", written_, bytes_);
  if (current_.memory && current_.bytes == size_t(kSumsBlock)) hand_over();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return full_.empty() && writing_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
  }
  stop();
  if (current_.memory && current_.bytes > 0) store(current_);
  free_.clear();
  current_ = {};
  file_.commit(Durable::content);
}

std::string BlockWriter::sums() const {
  std::string lines;
  for (const std::string& digest : digests_) lines += digest + "\n";
  return sums_text(written_, lines);
}

}  // namespace mtrain::storage
