// CPU streams that capture graphs: what they are given meanwhile is kept as closures, in the host's
// order, and a replay runs all of it as one launch.
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
  // A launch of this name cannot be recorded: as a library that synchronizes would not let itself.
  explicit RecordingBackend(std::string refused = "") { shared_->refused = std::move(refused); }
  std::string description() const override { return "a CPU that captures graphs"; }
  bool is_cuda() const override { return false; }
  // Launches of this name in all captures so far.
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
    bool invalid = false;               // as CUDA has it: the end of the capture fails
    std::map<std::string, int> counts;  // of names
  };

  // Tells what it was recorded in, so that streams join as they do on CUDA.
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
    // A recorded item counts among the stream's, as it does on CUDA.
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
