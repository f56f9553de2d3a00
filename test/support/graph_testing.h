// A CPU backend whose streams can capture graphs. A capture keeps the enqueued work as closures, in
// the order of the host; a replay runs all of them as one launch.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <string>
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
    return std::make_unique<RecordingStream>(real_->make_stream(id), shared_);
  }
  void* allocate(int64_t bytes) override { return real_->allocate(bytes); }
  void release(void* memory, int64_t bytes) override { real_->release(memory, bytes); }

 private:
  class RecordingStream;
  struct Recorded {
    device::LaunchTag tag;
    device::Work work;
  };
  struct Shared {
    std::string refused;
    std::vector<RecordingStream*> capturing;
    std::vector<Recorded> recorded;
    bool invalid = false;               // then end_capture() throws, as CUDA does
    std::map<std::string, int> counts;  // captured launches by name
  };

  // Marks an event of a capture: a stream that waits for it joins the capture, as on CUDA.
  class RecordedEvent : public device::EventBackend {
   public:
    bool ready() const override { return false; }
    void wait() const override { throw BugError("the host waits for a moment within a graph"); }
  };

  class RecordingStream : public device::StreamBackend {
   public:
    RecordingStream(std::unique_ptr<device::StreamBackend> real, std::shared_ptr<Shared> shared)
        : real_(std::move(real)), shared_(std::move(shared)) {}

    void enqueue(device::LaunchTag tag, device::Work work) override {
      if (!capturing_) return real_->enqueue(std::move(tag), std::move(work));
      if (tag.name == shared_->refused) {
        shared_->invalid = true;
        throw RunError("not permitted while a stream is capturing");
      }
      count(tag);
      ++shared_->counts[tag.name];
      shared_->recorded.push_back({std::move(tag), std::move(work)});
    }
    std::shared_ptr<device::EventBackend> record() override {
      if (capturing_) return std::make_shared<RecordedEvent>();
      return real_->record();
    }
    void wait(device::LaunchTag tag, std::shared_ptr<device::EventBackend> event) override {
      if (!dynamic_cast<RecordedEvent*>(event.get()))
        return real_->wait(std::move(tag), std::move(event));
      if (!capturing_) shared_->capturing.push_back(this);
      capturing_ = true;
      count(tag);
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
      capturing_ = true;
      shared_->capturing = {this};
      shared_->recorded.clear();
      shared_->invalid = false;
    }
    device::Work end_capture() override {
      for (RecordingStream* s : shared_->capturing) s->capturing_ = false;
      if (shared_->invalid) throw RunError("the capture was invalidated");
      return [recorded = std::exchange(shared_->recorded, {})](const device::LaunchContext& c) {
        for (const Recorded& r : recorded) r.work(c);
      };
    }

   private:
    // A captured item uses a number of its stream, as on CUDA, so an empty item is enqueued.
    void count(const device::LaunchTag& tag) {
      real_->enqueue({.name = tag.name, .number = tag.number}, [](const device::LaunchContext&) {});
    }

    std::unique_ptr<device::StreamBackend> real_;
    std::shared_ptr<Shared> shared_;
    bool capturing_ = false;
  };

  std::unique_ptr<device::DeviceBackend> real_ = device::make_cpu_backend(1);
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace mtrain
