#include "device/device.h"

#include <exception>
#include <utility>

#include "device/backend.h"
#include "device/flight_recorder.h"
#include "device/recording/declared_values.h"
#include "device/sanitizer.h"

namespace mtrain::device {

std::unique_ptr<Device> Device::open(DeviceKind kind, int threads, int ordinal,
                                     DeviceOptions options) {
  return kind == DeviceKind::cuda ? cuda(ordinal, options) : cpu(threads, options);
}
std::unique_ptr<Device> Device::cpu(int threads, DeviceOptions options) {
  return std::unique_ptr<Device>(
      new Device(make_cpu_backend(threads, options.compute_slowdown), options));
}
std::unique_ptr<Device> Device::cuda(int ordinal, DeviceOptions options) {
  return std::unique_ptr<Device>(new Device(make_cuda_backend(ordinal), options));
}

std::unique_ptr<Device> Device::on(std::unique_ptr<DeviceBackend> backend, DeviceOptions options) {
  return std::unique_ptr<Device>(new Device(std::move(backend), options));
}

std::unique_ptr<Device> Device::recording(DeviceKind like, DeviceOptions options) {
  auto device = on(make_recording_backend(like), options);
  device->declared_ = std::make_unique<DeclaredValues>();
  return device;
}

Device::Device(std::unique_ptr<DeviceBackend> backend, DeviceOptions options)
    : backend_(std::move(backend)),
      norm_sm_margin_(options.norm_sm_margin),
      gemm_sm_margin_(options.gemm_sm_margin),
      dependent_launch_(options.dependent_launch),
      fixed_attention_order_(options.fixed_attention_order),
      own_attention_(options.own_attention),
      own_grouped_gemm_(options.own_grouped_gemm),
      ranges_(options.nvtx),
      allocator_(std::make_shared<Allocator>(*backend_)),
      recorder_(std::make_unique<FlightRecorder>()),
      sanitizer_(options.stream_sanitizer ? std::make_unique<Sanitizer>() : nullptr) {}

Device::~Device() {
  drain();
  allocator_.reset();
}

void Device::drain() noexcept {
  for (auto& [id, stream] : streams_) {
    try {
      stream->synchronize();
    } catch (...) {
      // A failed launch is reported to the code that waits for it.
    }
  }
}

Stream& Device::stream(StreamId id) {
  if (const auto it = streams_.find(id); it != streams_.end()) return *it->second;
  const int index = int(streams_.size());
  auto made = std::make_unique<Stream>(*this, id, index, backend_->make_stream(id));
  if (sanitizer_) sanitizer_->add_stream(index, id);
  return *streams_.emplace(id, std::move(made)).first->second;
}

void Device::synchronize() {
  std::exception_ptr failure;
  for (auto& [id, stream] : streams_) {
    try {
      stream->synchronize();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void Device::set_timing_sink(TimingSink* sink) {
  const TimingSink* before = std::exchange(sink_, sink);
  if (before && before != sink) drain();
  if (sink) backend_->begin_timings();
}

Device::Scope::Scope(Device& device, const std::string& name)
    : device_(device), outer_(device.scope_), range_(device, name.c_str()) {
  device_.scope_ = std::make_shared<const std::string>(outer_ ? *outer_ + " > " + name : name);
}

void Device::set_compute_slowdown(double factor) { backend_->set_compute_slowdown(factor); }
void Device::push_range(const char* name) { backend_->push_range(name); }
void Device::pop_range() { backend_->pop_range(); }

std::string Device::description() const { return backend_->description(); }
bool Device::is_cuda() const { return backend_->is_cuda(); }
int Device::threads() const { return backend_->threads(); }
int64_t Device::memory_bytes() const { return backend_->memory_bytes(); }
std::shared_ptr<void> Device::host_memory(int64_t bytes) { return backend_->host_memory(bytes); }

}  // namespace mtrain::device
