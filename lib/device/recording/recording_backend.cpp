// A device that runs nothing: its streams drop their work, and its memory is address space that
// nobody reads or writes.
#include <atomic>
#include <memory>
#include <utility>

#include "base/math.h"
#include "device/stream.h"

namespace mtrain::device {
namespace {

// Dropped work is complete at once.
class PassedEvent : public EventBackend {
 public:
  bool ready() const override { return true; }
  void wait() const override {}
};

class RecordingStream : public StreamBackend {
 public:
  void enqueue(LaunchTag, Work) override { ++items_; }
  std::shared_ptr<EventBackend> record() override { return passed_; }
  void wait(LaunchTag, std::shared_ptr<EventBackend>) override { ++items_; }
  void upload(LaunchTag, void*, std::shared_ptr<const void>, const void*, int64_t) override {
    ++items_;
  }
  void download(LaunchTag, void*, const void*, int64_t) override { ++items_; }
  void synchronize() override {}
  uint64_t completed() const override { return items_; }

 private:
  const std::shared_ptr<EventBackend> passed_ = std::make_shared<PassedEvent>();
  std::atomic<uint64_t> items_ = 0;
};

class RecordingBackend : public DeviceBackend {
 public:
  explicit RecordingBackend(DeviceKind like) : cuda_(like == DeviceKind::cuda) {}

  std::string description() const override {
    return cuda_ ? "recording, like a GPU" : "recording, like a CPU";
  }
  bool is_cuda() const override { return cuda_; }
  int threads() const override { return 1; }
  std::unique_ptr<StreamBackend> make_stream(StreamId) override {
    return std::make_unique<RecordingStream>();
  }
  // No address is used twice, and none is one of the process.
  void* allocate(int64_t bytes) override {
    return reinterpret_cast<void*>(std::exchange(next_, next_ + uintptr_t(round_up(bytes, kPage))));
  }
  void release(void*, int64_t) override {}

 private:
  static constexpr int64_t kPage = 2ll << 20;
  const bool cuda_;
  uintptr_t next_ = uintptr_t{1} << 50;  // processes have addresses below 2^47
};

}  // namespace

std::unique_ptr<DeviceBackend> make_recording_backend(DeviceKind like) {
  return std::make_unique<RecordingBackend>(like);
}

}  // namespace mtrain::device
