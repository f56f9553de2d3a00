// A CPU backend whose streams can capture graphs. A capture keeps the enqueued work as closures. A
// replay is one launch, which runs the work of each captured stream on a thread of its own: only
// the captured events order the streams, as on CUDA.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/backend.h"

namespace mtrain {

class RecordingBackend : public device::DeviceBackend {
 public:
  // A launch with the name `refused` cannot be captured, like the call of a library that
  // synchronizes.
  explicit RecordingBackend(std::string refused = "") { shared_->refused = std::move(refused); }
  std::string description() const override { return "a CPU that captures graphs"; }
  bool is_cuda() const override { return false; }
  // Returns the number of launches with this name in all captures so far.
  int captured(const std::string& name) const { return shared_->counts[name]; }
  int threads() const override { return 1; }
  std::unique_ptr<device::StreamBackend> make_stream(device::StreamId id) override {
    return std::make_unique<RecordingStream>(id, real_->make_stream(id), shared_);
  }
  void* allocate(int64_t bytes) override { return real_->allocate(bytes); }
  void release(void* memory, int64_t bytes) override { real_->release(memory, bytes); }

 private:
  class RecordingStream;
  // A launch, or a wait for the first `count` items of the captured stream `stream`.
  struct Recorded {
    device::LaunchTag tag;
    device::Work work;
    device::StreamId on = device::StreamKind::compute;
    size_t stream = 0, count = 0;
  };
  using Streams = std::vector<std::vector<Recorded>>;  // the first is where the capture began
  struct Shared {
    std::string refused;
    std::vector<RecordingStream*> capturing;
    Streams recorded;
    bool invalid = false;               // then end_capture() throws, as CUDA does
    std::map<std::string, int> counts;  // captured launches by name
  };

  // Marks a moment of a capture: a stream that waits for it joins the capture, as on CUDA.
  class RecordedEvent : public device::EventBackend {
   public:
    RecordedEvent(size_t of_stream, size_t items) : stream(of_stream), count(items) {}
    bool ready() const override { return false; }
    void wait() const override { throw BugError("the host waits for a moment within a graph"); }
    const size_t stream, count;
  };

  // One replay. The first failure ends it on all streams.
  class Replay {
   public:
    explicit Replay(const Streams& recorded) : recorded_(recorded), done_(recorded.size()) {}
    void run(const device::LaunchContext& context) {
      {
        std::vector<std::jthread> others;
        for (size_t s = 1; s < recorded_.size(); ++s)
          others.emplace_back([&, s] { run_stream(s, {}); });
        run_stream(0, context);
      }
      if (failure_) std::rethrow_exception(failure_);
    }

   private:
    void run_stream(size_t s, const device::LaunchContext& context) {
      for (const Recorded& r : recorded_[s]) {
        std::exception_ptr failure;
        if (r.work) {
          try {
            r.work(context);
          } catch (...) {
            failure = with_culprit(std::current_exception(), r.tag, r.on);
          }
        }
        std::unique_lock lock(mutex_);
        if (!r.work) changed_.wait(lock, [&] { return failure_ || done_[r.stream] >= r.count; });
        if (failure && !failure_) failure_ = failure;
        ++done_[s];
        changed_.notify_all();
        if (failure_) return;
      }
    }

    const Streams& recorded_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<size_t> done_;  // items of each stream
    std::exception_ptr failure_;
  };

  class RecordingStream : public device::StreamBackend {
   public:
    RecordingStream(device::StreamId id, std::unique_ptr<device::StreamBackend> real,
                    std::shared_ptr<Shared> shared)
        : id_(id), real_(std::move(real)), shared_(std::move(shared)) {}

    void enqueue(device::LaunchTag tag, device::Work work) override {
      if (!capturing_) return real_->enqueue(std::move(tag), std::move(work));
      if (tag.name == shared_->refused) {
        shared_->invalid = true;
        throw RunError("not permitted while a stream is capturing");
      }
      count(tag);
      ++shared_->counts[tag.name];
      own().push_back({std::move(tag), std::move(work), id_});
    }
    std::shared_ptr<device::EventBackend> record() override {
      if (capturing_) return std::make_shared<RecordedEvent>(place_, own().size());
      return real_->record();
    }
    void wait(device::LaunchTag tag, std::shared_ptr<device::EventBackend> event) override {
      const auto* moment = dynamic_cast<RecordedEvent*>(event.get());
      if (!moment) return real_->wait(std::move(tag), std::move(event));
      if (!capturing_) join();
      count(tag);
      own().push_back({std::move(tag), {}, id_, moment->stream, moment->count});
    }
    void upload(device::LaunchTag tag, void* device, std::shared_ptr<const void> keep,
                const void* host, int64_t bytes) override {
      MT_CHECK(!capturing_);
      real_->upload(std::move(tag), device, std::move(keep), host, bytes);
    }
    void download(device::LaunchTag tag, void* host, const void* device, int64_t bytes) override {
      MT_CHECK(!capturing_);
      real_->download(std::move(tag), host, device, bytes);
    }
    void synchronize() override {
      MT_CHECK(!capturing_);
      real_->synchronize();
    }
    uint64_t completed() const override { return real_->completed(); }

    void begin_capture() override {
      shared_->capturing.clear();
      shared_->recorded.clear();
      shared_->invalid = false;
      join();
    }
    device::Work end_capture() override {
      for (RecordingStream* s : shared_->capturing) s->capturing_ = false;
      if (shared_->invalid) throw RunError("the capture was invalidated");
      return [recorded = std::exchange(shared_->recorded, {})](const device::LaunchContext& c) {
        Replay(recorded).run(c);
      };
    }

   private:
    void join() {
      capturing_ = true;
      place_ = shared_->capturing.size();
      shared_->capturing.push_back(this);
      shared_->recorded.emplace_back();
    }
    std::vector<Recorded>& own() { return shared_->recorded[place_]; }
    // A captured item uses a number of its stream, as on CUDA, so an empty item is enqueued.
    void count(const device::LaunchTag& tag) {
      real_->enqueue({.name = tag.name, .number = tag.number}, [](const device::LaunchContext&) {});
    }

    const device::StreamId id_;
    std::unique_ptr<device::StreamBackend> real_;
    std::shared_ptr<Shared> shared_;
    bool capturing_ = false;
    size_t place_ = 0;  // the stream's number within the capture
  };

  std::unique_ptr<device::DeviceBackend> real_ = device::make_cpu_backend(1);
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace mtrain
