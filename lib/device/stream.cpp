#include "device/stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/allocator.h"
#include "device/device.h"
#include "device/flight_recorder.h"
#include "device/graph.h"
#include "device/recording/declared_values.h"
#include "device/recording/records.h"
#include "device/sanitizer.h"

namespace mtrain::device {

Stream::Stream(Device& device, StreamId id, int index, std::unique_ptr<StreamBackend> backend)
    : device_(device),
      id_(id),
      name_(stream_name(id)),
      index_(index),
      backend_(std::move(backend)) {}
Stream::~Stream() = default;

LaunchTag Stream::register_launch(const LaunchInfo& info) {
  if (auto* sanitizer = device_.sanitizer()) sanitizer->on_launch(index_, info);
  const auto mark = [&](const std::vector<Access>& accesses) {
    for (const Access& a : accesses) {
      if (!a.storage || !a.storage->home || a.storage->home == this) continue;
      auto& others = a.storage->others;
      const auto known = std::ranges::find(others, this, &Storage::Touch::stream);
      if (known == others.end())
        others.push_back({this, enqueued_ + 1});
      else
        known->items = enqueued_ + 1;
    }
  };
  mark(info.reads);
  mark(info.writes);
  device_.recorder().record(info.name, *this, ++enqueued_);
  if (Records* records = device_.records()) records->add_launch(*this, info);
  return {.name = info.name,
          .number = enqueued_,
          .scope = device_.shared_scope(),
          .sink = device_.capture() ? nullptr : device_.timing_sink(),
          .wire_bytes = info.wire_bytes,
          .paired = device_.pairs(),
          .messages = info.messages};
}

void Stream::launch(LaunchInfo info, Work work) {
  {
    const Device::Range range(device_, info.name);
    const std::lock_guard lock(order_);
    if (Capture* capture = device_.capture()) capture->add(*this, info);
    backend_->enqueue(register_launch(info), std::move(work));
  }
  if (device_.launch_check()) device_.launch_check()(*this, info);
}

Event Stream::record() {
  Event event;
  const std::lock_guard lock(order_);
  if (auto* sanitizer = device_.sanitizer()) event.clock_ = sanitizer->on_record(index_);
  event.backend_ = backend_->record();
  event.stream_ = this;
  event.number_ = enqueued_;
  event.capture_ = capture_;
  return event;
}

bool Stream::comes_after(const Stream& other, uint64_t items) const {
  const std::lock_guard lock(reached_mutex_);
  const auto from = size_t(other.index_);
  return from < reached_.size() && reached_[from] >= items;
}

void Stream::wait(const Event& event) {
  if (!event.backend_) return;
  const std::lock_guard lock(order_);
  Capture* const capture = device_.capture();
  if (capture && !event.capture_) {
    capture->add_earlier(*this, *event.stream_);
    if (auto* sanitizer = device_.sanitizer()) sanitizer->on_wait(index_, event.clock_);
    return;
  }
  if (capture)
    capture->add_wait(*this, event.capture_, *event.stream_);
  else
    MT_CHECK(!event.capture_, "stream {} waits for an event that stream {} recorded in a capture",
             name_, event.stream_->name());
  if (auto* sanitizer = device_.sanitizer()) sanitizer->on_wait(index_, event.clock_);
  ++enqueued_;
  if (Records* records = device_.records())
    records->add_wait(*this, event.stream_->id(), event.number_);
  backend_->wait({.name = "wait",
                  .number = enqueued_,
                  .scope = device_.shared_scope(),
                  .sink = device_.capture() ? nullptr : device_.timing_sink(),
                  .waits_for = event.stream_->id(),
                  .paired = device_.pairs()},
                 event.backend_);
  const auto from = size_t(event.stream_->index());
  const std::lock_guard reached(reached_mutex_);
  if (reached_.size() <= from) reached_.resize(from + 1);
  reached_[from] = std::max(reached_[from], event.number_);
}

void Stream::refuse_capture(const char* what) const {
  if (capture_)
    throw RunError(fmt::format("{} of stream {} cannot be part of a graph", what, name_));
}

void Stream::synchronize() {
  refuse_capture("waiting for the end");
  backend_->synchronize();
  if (auto* sanitizer = device_.sanitizer()) sanitizer->on_host_wait(sanitizer->on_record(index_));
}

void Stream::synchronize(const Event& event) {
  if (!event.backend_) return;
  refuse_capture("waiting for an event");
  event.backend_->wait();
  host_saw(event);
}

void Stream::host_saw(const Event& event) {
  if (auto* sanitizer = device_.sanitizer()) sanitizer->on_host_wait(event.clock_);
}

void Stream::upload(const Access& device, std::shared_ptr<const void> keep, const void* host) {
  if (device.bytes == 0) return;
  refuse_capture("an upload");
  const std::lock_guard lock(order_);
  // A recording backend drops `keep` at once.
  if (DeclaredValues* values = device_.declared_values()) values->upload(device, host);
  backend_->upload(register_launch({.name = "upload", .writes = {device}}),
                   const_cast<void*>(device.data), std::move(keep), host, device.bytes);
}

void Stream::download(void* host, const Access& device) {
  refuse_capture("a download");
  if (device.bytes > 0) {
    const std::lock_guard lock(order_);
    backend_->download(register_launch({.name = "download", .reads = {device}}), host, device.data,
                       device.bytes);
    if (const DeclaredValues* values = device_.declared_values()) values->download(host, device);
  }
  synchronize();
}

void Stream::download_later(void* host, const Access& device) {
  if (device.bytes == 0) return;
  refuse_capture("a download");
  const std::lock_guard lock(order_);
  const LaunchInfo info{.name = "download", .reads = {device}, .writes = {{host, device.bytes}}};
  backend_->download(register_launch(info), host, device.data, device.bytes);
  if (const DeclaredValues* values = device_.declared_values()) values->download(host, device);
}

uint64_t Stream::completed() const { return backend_->completed(); }

}  // namespace mtrain::device
