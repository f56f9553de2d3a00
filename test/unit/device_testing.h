// Helpers for tests of streams: a gate that blocks a stream, and a CPU backend with limits.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/error.h"
#include "device/device.h"

namespace mtrain {

// Blocks a stream until it is opened. Declare it after the device: its destructor then opens it
// before the device waits for its streams, so that a failed check does not hang the test.
class Gate {
 public:
  Gate() = default;
  ~Gate() { open(); }
  void open() { *open_ = true; }
  void block(Stream& stream) {
    stream.launch({.name = "gate"}, [open = open_](const device::LaunchContext&) {
      while (!*open) std::this_thread::yield();
    });
  }

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

// A CPU backend with a limit of memory, whose streams refuse events on request.
class LimitedBackend : public device::DeviceBackend {
 public:
  struct Control {
    int64_t limit = INT64_MAX, used = 0;  // bytes
    std::atomic<bool> no_events = false;
    std::function<void()> before_enqueue;
  };
  explicit LimitedBackend(std::shared_ptr<Control> control) : control_(std::move(control)) {}

  std::string description() const override { return "a limited CPU"; }
  bool is_cuda() const override { return false; }
  int threads() const override { return 1; }
  std::unique_ptr<device::StreamBackend> make_stream(device::StreamId id) override {
    return std::make_unique<LimitedStream>(real_->make_stream(id), control_);
  }
  void* allocate(int64_t bytes) override {
    if (control_->used + bytes > control_->limit) throw RunError("out of memory", "buy some");
    control_->used += bytes;
    return real_->allocate(bytes);
  }
  void release(void* memory, int64_t bytes) override {
    control_->used -= bytes;
    real_->release(memory, bytes);
  }

 private:
  class LimitedStream : public device::StreamBackend {
   public:
    LimitedStream(std::unique_ptr<StreamBackend> real, std::shared_ptr<Control> control)
        : real_(std::move(real)), control_(std::move(control)) {}
    void enqueue(device::LaunchTag tag, device::Work work) override {
      if (control_->before_enqueue) control_->before_enqueue();
      real_->enqueue(std::move(tag), std::move(work));
    }
    std::shared_ptr<device::EventBackend> record() override {
      if (control_->no_events) throw RunError("no event");
      return real_->record();
    }
    void wait(device::LaunchTag tag, std::shared_ptr<device::EventBackend> event) override {
      real_->wait(std::move(tag), std::move(event));
    }
    void upload(device::LaunchTag tag, void* device, std::shared_ptr<const void> keep,
                const void* host, int64_t bytes) override {
      real_->upload(std::move(tag), device, std::move(keep), host, bytes);
    }
    void download(device::LaunchTag tag, void* host, const void* device, int64_t bytes) override {
      real_->download(std::move(tag), host, device, bytes);
    }
    void synchronize() override { real_->synchronize(); }
    uint64_t completed() const override { return real_->completed(); }

   private:
    std::unique_ptr<StreamBackend> real_;
    std::shared_ptr<Control> control_;
  };

  std::unique_ptr<DeviceBackend> real_ = device::make_cpu_backend(1);
  std::shared_ptr<Control> control_;
};

inline void no_work(const device::LaunchContext&) {}

inline device::Access all_of(const device::Buffer& b) { return {b->data, b->bytes, b}; }
inline device::Access part_of(const device::Buffer& b, int64_t begin, int64_t end) {
  return {static_cast<char*>(b->data) + begin, end - begin, b};
}

}  // namespace mtrain
