// Streams as worker threads: a stream is a FIFO queue of closures, an event is a number of items
// that another stream or the host waits for.
#include <sys/mman.h>
#include <time.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/thread_pool.h"
#include "device/stream.h"

namespace mtrain::device {
namespace {

constexpr int64_t kHugePage = 2ll << 20;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How many items a stream has run. Events keep it alive, since they may outlive their stream.
class Progress {
 public:
  // Wakes threads only when the stream reaches the first count that one of them waits for: waking
  // them for each item costs more than the items of a small model.
  void advance() {
    if (++passed_ < awaited_.load()) return;
    {
      std::lock_guard lock(mutex_);
      awaited_.store(kNever);
    }
    moved_.notify_all();
  }
  // A thread publishes what it waits for and then checks the count again. Therefore either it sees
  // the new count, or advance() sees that it waits, and takes the lock.
  void wait_for(uint64_t count) {
    if (passed(count)) return;
    std::unique_lock lock(mutex_);
    while (true) {
      awaited_.store(std::min(awaited_.load(), count));
      if (passed(count)) return;
      moved_.wait(lock);
    }
  }
  bool passed(uint64_t count) const { return passed_.load() >= count; }

  // Records that the current item has failed. It and all later items count as passed, but never as
  // completed.
  void fail(std::exception_ptr failure) {
    failure_ = std::move(failure);
    failed_at_.store(passed_.load());
  }
  void rethrow_failure_before(uint64_t count) const {
    if (failed_at_.load() < count) std::rethrow_exception(failure_);
  }
  bool failed() const { return failed_at_.load() != kNever; }
  uint64_t completed() const { return std::min(passed_.load(), failed_at_.load()); }

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  std::atomic<uint64_t> passed_{0};
  std::atomic<uint64_t> awaited_{kNever};  // the first count that a thread waits for
  std::atomic<uint64_t> failed_at_{kNever};
  std::exception_ptr failure_;  // written once, before failed_at_
  std::mutex mutex_;
  std::condition_variable moved_;
};

class CpuEvent : public EventBackend {
 public:
  CpuEvent(std::shared_ptr<Progress> progress, uint64_t count)
      : progress_(std::move(progress)), count_(count) {}
  bool ready() const override { return progress_->passed(count_); }
  // Rethrows the failure of the work before the event: the waiting work must not use its results.
  void wait() const override {
    progress_->wait_for(count_);
    progress_->rethrow_failure_before(count_);
  }

 private:
  std::shared_ptr<Progress> progress_;
  uint64_t count_;
};

// Makes work take `factor` times the processor time that it needs, by sleeping for the rest. Then
// `factor` ranks can share one processor and run with the timing of ranks that have a processor
// each.
class Slowdown {
 public:
  explicit Slowdown(std::shared_ptr<const std::atomic<double>> factor) : now_(std::move(factor)) {}

  void run(const Work& work, const LaunchContext& context) {
    const double factor = now_ ? now_->load(std::memory_order_relaxed) : 1;
    if (factor <= 1) return work(context);
    const int64_t begin = now_ns(), used = processor_ns();
    work(context);
    // If other threads held the processor, the work has already taken longer; later work sleeps
    // less.
    owed_ns_ += int64_t(factor * double(processor_ns() - used)) - (now_ns() - begin);
    owed_ns_ = std::max(owed_ns_, -kForgotten);
    if (owed_ns_ < kWorthwhile) return;
    const int64_t asleep = now_ns();
    std::this_thread::sleep_for(std::chrono::nanoseconds(owed_ns_));
    owed_ns_ -= now_ns() - asleep;
  }

 private:
  static constexpr int64_t kWorthwhile = 200'000;   // ns; a sleep takes about 90 us too long
  static constexpr int64_t kForgotten = 2'000'000;  // ns; a longer delay is not compensated

  static int64_t processor_ns() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
  }

  const std::shared_ptr<const std::atomic<double>> now_;  // null: 1
  int64_t owed_ns_ = 0;
};

class CpuStream : public StreamBackend {
 public:
  CpuStream(StreamId id, ThreadPool& pool, std::shared_ptr<const std::atomic<double>> slowdown)
      : id_(id), pool_(pool), slowdown_(std::move(slowdown)), worker_([this] { work(); }) {}

  ~CpuStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    worker_.join();
  }

  void enqueue(LaunchTag tag, Work work) override {
    push({.tag = std::move(tag), .work = std::move(work)});
  }

  std::shared_ptr<EventBackend> record() override {
    std::lock_guard lock(mutex_);
    return std::make_shared<CpuEvent>(progress_, enqueued_);
  }

  // A failure of the work before the event already names its own item.
  void wait(LaunchTag tag, std::shared_ptr<EventBackend> event) override {
    push({.tag = std::move(tag),
          .work = [event = std::move(event)](const LaunchContext&) { event->wait(); },
          .own = false});
  }

  void upload(LaunchTag tag, void* device, std::shared_ptr<const void> keep, const void* host,
              int64_t bytes) override {
    tag.sink = nullptr;
    enqueue(std::move(tag), [=, keep = std::move(keep)](const LaunchContext&) {
      std::memcpy(device, host, size_t(bytes));
    });
  }

  void download(LaunchTag tag, void* host, const void* device, int64_t bytes) override {
    tag.sink = nullptr;
    enqueue(std::move(tag),
            [=](const LaunchContext&) { std::memcpy(host, device, size_t(bytes)); });
  }

  void synchronize() override { record()->wait(); }

  uint64_t completed() const override { return progress_->completed(); }

 private:
  struct Item {
    LaunchTag tag;
    Work work;
    bool own = true;  // a failure belongs to this item, not to work that it waited for
  };

  void push(Item item) {
    progress_->rethrow_failure_before(UINT64_MAX);
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
      ++enqueued_;
    }
    wake_.notify_one();
  }

  void work() {
    const ThreadPool::Scope scope(&pool_);
    while (true) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      run(item);
      // The closure is destroyed before the item counts as done.
      item.work = nullptr;
      progress_->advance();
    }
  }

  // After a failure the rest of the queue is skipped; waiting streams and hosts then wake up and
  // see the failure.
  void run(Item& item) {
    if (progress_->failed()) return;
    try {
      TimingSink* const sink = item.tag.sink;
      const int64_t begin = sink ? now_ns() : 0;
      std::optional<int64_t> idle = 0;
      const LaunchContext context{.idle_ns = sink ? &idle : nullptr};
      item.own ? slowdown_.run(item.work, context) : item.work(context);
      if (sink) tell(*sink, item.tag, begin, now_ns(), idle);
    } catch (...) {
      const auto failure = std::current_exception();
      progress_->fail(item.own ? with_culprit(failure, item.tag, id_) : failure);
    }
  }

  void tell(TimingSink& sink, const LaunchTag& tag, int64_t begin, int64_t end,
            std::optional<int64_t> idle) const {
    const std::string_view scope = tag.scope ? std::string_view(*tag.scope) : "";
    if (tag.waits_for)
      sink.waited({id_, *tag.waits_for, begin, end, tag.paired, scope});
    else
      sink.record(
          {tag.name, id_, begin, end, tag.wire_bytes, idle, tag.paired, scope, tag.messages});
  }

  const StreamId id_;
  ThreadPool& pool_;
  Slowdown slowdown_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> queue_;
  uint64_t enqueued_ = 0;
  bool stop_ = false;
  std::thread worker_;  // last: it uses all of the above
};

class CpuBackend : public DeviceBackend {
 public:
  CpuBackend(int threads, double compute_slowdown)
      : pool_(threads),
        compute_slowdown_(std::make_shared<std::atomic<double>>(compute_slowdown)) {}

  std::string description() const override {
    return fmt::format(
        "CPU, {} thread{}{}", pool_.threads(), pool_.threads() == 1 ? "" : "s",
        *compute_slowdown_ > 1 ? fmt::format(", slowed {} x", compute_slowdown_->load()) : "");
  }
  bool is_cuda() const override { return false; }
  int threads() const override { return pool_.threads(); }
  std::unique_ptr<StreamBackend> make_stream(StreamId id) override {
    return std::make_unique<CpuStream>(
        id, pool_, id.kind == StreamKind::compute ? compute_slowdown_ : nullptr);
  }
  void set_compute_slowdown(double factor) override { *compute_slowdown_ = factor; }

  // Maps memory directly, in huge pages if the system has them: otherwise page faults and TLB
  // misses cost a training step up to 30 %.
  void* allocate(int64_t bytes) override {
    const size_t mapped = size_t(bytes) + kHugePage;
    void* raw = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
      throw RunError(fmt::format("out of memory: the system refused {} MiB", bytes >> 20),
                     "reduce train.micro_batch_size or the model, or turn on recompute");
    const auto begin = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = uintptr_t(round_up(int64_t(begin), kHugePage));
    if (aligned > begin) ::munmap(raw, aligned - begin);
    const uintptr_t end = begin + mapped, used = aligned + size_t(bytes);
    if (end > used) ::munmap(reinterpret_cast<void*>(used), end - used);
    ::madvise(reinterpret_cast<void*>(aligned), size_t(bytes), MADV_HUGEPAGE);
    return reinterpret_cast<void*>(aligned);
  }
  void release(void* memory, int64_t bytes) override { ::munmap(memory, size_t(bytes)); }
  std::shared_ptr<void> host_memory(int64_t bytes) override {
    if (bytes < kHugePage) return DeviceBackend::host_memory(bytes);
    return {allocate(bytes), [bytes](void* memory) { ::munmap(memory, size_t(bytes)); }};
  }

 private:
  ThreadPool pool_;
  const std::shared_ptr<std::atomic<double>> compute_slowdown_;
};

}  // namespace

std::unique_ptr<DeviceBackend> make_cpu_backend(int threads, double compute_slowdown) {
  MT_CHECK(threads >= 1, "{} threads", threads);
  return std::make_unique<CpuBackend>(threads, compute_slowdown);
}

}  // namespace mtrain::device
