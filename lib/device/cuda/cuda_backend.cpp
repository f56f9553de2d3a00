// Streams are cudaStream_t, events cudaEvent_t. The work of a launch runs on the host and enqueues
// on the stream.
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "base/error.h"
#include "device/event_pool.h"
#include "device/gpu_clock.h"
#include "device/staging.h"
#include "device/stream.h"

namespace mtrain::device {
namespace {

// Throws RunError, which names the call, the line and the library's own text, if a call failed.
void check(cudaError_t status, const char* call, int line) {
  if (status == cudaSuccess) return;
  throw RunError(fmt::format("{} failed at cuda_backend.cpp:{}: {} ({})", call, line,
                             cudaGetErrorString(status), cudaGetErrorName(status)));
}
#define MT_CUDA(call) check(call, #call, __LINE__)

using CudaEventPool = EventPool<cudaEvent_t>;

std::shared_ptr<CudaEventPool> make_event_pool() {
  return std::make_shared<CudaEventPool>(
      [](bool timed) {
        cudaEvent_t event = nullptr;
        MT_CUDA(
            cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
        return event;
      },
      [](cudaEvent_t event) { cudaEventDestroy(event); });
}

class CudaEvent : public EventBackend {
 public:
  enum class Kind { plain, timed, captured };

  CudaEvent(std::shared_ptr<CudaEventPool> pool, cudaStream_t stream, Kind kind,
            std::shared_ptr<AsyncError> late = {})
      : pool_(std::move(pool)), late_(std::move(late)), kind_(kind) {
    MT_CUDA(cudaGetDevice(&device_));
    event_ = pool_->take(kind_ == Kind::timed);
    if (const cudaError_t status = cudaEventRecord(event_, stream); status != cudaSuccess) {
      pool_->drop(event_);  // no destructor runs if the constructor throws
      check(status, "cudaEventRecord", __LINE__);
    }
  }
  // An edge of a graph is not reused.
  ~CudaEvent() override {
    if (kind_ == Kind::captured)
      pool_->drop(event_);
    else
      pool_->give_back(event_, kind_ == Kind::timed);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool ready() const override {
    if (kind_ == Kind::captured) return false;
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaEventQuery", __LINE__);
    return true;
  }
  void wait() const override {
    MT_CHECK(kind_ != Kind::captured, "the host waits for an event that was recorded in a capture");
    // Any thread may wait. One without a device would use memory of the first GPU.
    MT_CUDA(cudaSetDevice(device_));
    MT_CUDA(cudaEventSynchronize(event_));
    if (late_) late_->rethrow();
  }
  cudaEvent_t handle() const { return event_; }

 private:
  const std::shared_ptr<CudaEventPool> pool_;
  int device_ = 0;
  cudaEvent_t event_ = nullptr;
  std::shared_ptr<AsyncError> late_;  // null for events that only measure time
  const Kind kind_;  // captured: an edge of a graph, which never becomes ready by itself
};

using CudaClock = GpuClock<CudaEvent>;

// Returns the clock of all streams of a device. Its own stream has no work but its events.
std::shared_ptr<CudaClock> make_clock(int ordinal, std::shared_ptr<CudaEventPool> events) {
  const auto make_stream = [ordinal] {
    MT_CUDA(cudaSetDevice(ordinal));
    cudaStream_t stream = nullptr;
    MT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return std::shared_ptr<CUstream_st>(stream, [](cudaStream_t s) { cudaStreamDestroy(s); });
  };
  return std::make_shared<CudaClock>(CudaClock::Driver{
      .event_now =
          [stream = make_stream(), events = std::move(events)] {
            auto event =
                std::make_shared<const CudaEvent>(events, stream.get(), CudaEvent::Kind::timed);
            event->wait();
            return event;
          },
      .elapsed_ms =
          [](const CudaEvent& from, const CudaEvent& to) {
            float ms = 0;
            MT_CUDA(cudaEventElapsedTime(&ms, from.handle(), to.handle()));
            return ms;
          },
      .host_ns =
          [] {
            return int64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::steady_clock::now().time_since_epoch())
                               .count());
          }});
}

// Timings of launches that the GPU has not finished yet. They are resolved in order.
class PendingTimings {
 public:
  explicit PendingTimings(std::shared_ptr<CudaClock> clock) : clock_(std::move(clock)) {}
  void add(const LaunchTag& tag, std::optional<int64_t> idle_ns, std::unique_ptr<CudaEvent> begin,
           std::unique_ptr<CudaEvent> end) {
    pending_.push_back({tag.name, tag.waits_for, tag.wire_bytes, idle_ns, tag.paired, tag.scope,
                        tag.messages, tag.sink, clock_->origin(), std::move(begin),
                        std::move(end)});
  }
  void resolve(StreamId stream, bool all) {
    while (!pending_.empty() && (all || pending_.front().end->ready())) {
      const Entry& e = pending_.front();
      e.end->wait();
      const auto [begin, end] = clock_->span_ns(*e.origin, *e.begin, *e.end);
      const std::string_view scope = e.scope ? std::string_view(*e.scope) : "";
      if (e.waits_for)
        e.sink->waited({stream, *e.waits_for, begin, end, e.paired, scope});
      else
        e.sink->record(
            {e.name, stream, begin, end, e.wire_bytes, e.idle_ns, e.paired, scope, e.messages});
      pending_.pop_front();
    }
  }

 private:
  struct Entry {
    const char* name;
    std::optional<StreamId> waits_for;
    int64_t wire_bytes;
    std::optional<int64_t> idle_ns;
    bool paired;
    std::shared_ptr<const std::string> scope;
    std::shared_ptr<const MessageEnds> messages;
    TimingSink* sink;
    std::shared_ptr<const CudaClock::Origin> origin;
    std::unique_ptr<CudaEvent> begin, end;
  };
  const std::shared_ptr<CudaClock> clock_;
  std::deque<Entry> pending_;
};

std::shared_ptr<void> pinned(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t result = cudaHostAlloc(&memory, size_t(bytes), cudaHostAllocDefault);
  if (result != cudaSuccess) cudaGetLastError();  // a caller may continue without this memory
  MT_CUDA(result);
  return {memory, [](void* p) { cudaFreeHost(p); }};
}

// The captures of a device.
struct Captures {
  std::atomic<int> running = 0;
  ReplayHooks hooks;  // what the launches of the capture in progress have asked for
};

// A graph, and what must be done around its replays. The graph is destroyed first: its calls of
// NCCL refer to communicators.
struct ReplayedGraph {
  ReplayHooks hooks;
  std::shared_ptr<CUgraphExec_st> exec;
};

class CudaStream : public StreamBackend {
 public:
  CudaStream(StreamId id, int ordinal, std::shared_ptr<AsyncError> late,
             std::shared_ptr<Captures> captures, std::shared_ptr<CudaEventPool> events,
             std::shared_ptr<CudaClock> clock)
      : id_(id),
        ordinal_(ordinal),
        late_(std::move(late)),
        captures_(std::move(captures)),
        events_(std::move(events)),
        timings_(std::move(clock)) {
    MT_CUDA(cudaSetDevice(ordinal_));
    int least = 0, greatest = 0;
    MT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    // Communication has priority for free multiprocessors over the waiting blocks of a computation.
    // Otherwise it would begin only when the computation has ended.
    const bool computes = id_.kind == StreamKind::compute || id_.kind == StreamKind::copy;
    const int priority = computes ? least : greatest;
    MT_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  ~CudaStream() override { cudaStreamDestroy(stream_); }

  void enqueue(LaunchTag tag, Work work) override {
    late_->rethrow();
    auto begin = tag.sink ? timing_event() : nullptr;
    std::optional<int64_t> idle = 0;
    try {
      work({.cuda = stream_,
            .idle_ns = tag.sink ? &idle : nullptr,
            .late = late_,
            .record = [this] { return event_of_launch(); },
            .replays = is_captured() ? &captures_->hooks : nullptr});
    } catch (...) {
      ++enqueued_;
      std::rethrow_exception(with_culprit(std::current_exception(), tag, id_));
    }
    ++enqueued_;  // not before work(): if memory is short, work() waits for everything enqueued
    if (!tag.sink) return;
    timings_.add(tag, idle, std::move(begin), timing_event());
    timings_.resolve(id_, false);
  }

  std::shared_ptr<EventBackend> record() override {
    // Any thread may drop memory and thereby record; an event belongs to the thread's current
    // device.
    MT_CUDA(cudaSetDevice(ordinal_));
    const bool captured = is_captured();
    using Kind = CudaEvent::Kind;
    auto event = std::make_shared<CudaEvent>(events_, stream_,
                                             captured ? Kind::captured : Kind::plain, late_);
    if (captured) return event;
    std::lock_guard lock(mutex_);
    marks_.emplace_back(event, enqueued_);
    while (!marks_.empty() && marks_.front().first->ready()) pass_mark();
    return event;
  }

  void wait(LaunchTag tag, std::shared_ptr<EventBackend> event) override {
    ++enqueued_;
    // `begin` is reached when the work before the wait is done; from then on the stream is idle.
    auto begin = tag.sink ? timing_event() : nullptr;
    MT_CUDA(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(*event).handle(), 0));
    if (tag.sink) timings_.add(tag, 0, std::move(begin), timing_event());
  }

  // A copy from pageable memory would make the host wait until the stream's work is done. Data that
  // is not too large therefore goes through pinned memory. In both cases `keep` need not outlive
  // the call.
  void upload(LaunchTag, void* device, std::shared_ptr<const void>, const void* host,
              int64_t bytes) override {
    ++enqueued_;
    Staging::Slot* const slot = staging_.take(bytes);
    if (slot) host = std::memcpy(slot->memory.get(), host, size_t(bytes));
    MT_CUDA(cudaMemcpyAsync(device, host, size_t(bytes), cudaMemcpyHostToDevice, stream_));
    if (slot) slot->passed = std::make_shared<CudaEvent>(events_, stream_, CudaEvent::Kind::plain);
  }
  void download(LaunchTag, void* host, const void* device, int64_t bytes) override {
    ++enqueued_;
    MT_CUDA(cudaMemcpyAsync(host, device, size_t(bytes), cudaMemcpyDeviceToHost, stream_));
  }

  void synchronize() override {
    MT_CUDA(cudaStreamSynchronize(stream_));
    timings_.resolve(id_, true);
    std::lock_guard lock(mutex_);
    while (!marks_.empty()) pass_mark();
    completed_ = enqueued_;
    late_->rethrow();
  }

  // The mode is relaxed since a capture may allocate memory, and since other threads query events
  // during it.
  void begin_capture() override {
    MT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    ++captures_->running;
    captures_->hooks.clear();
  }

  // Streams that joined the capture by waiting for its events leave it here.
  Work end_capture() override {
    --captures_->running;
    ReplayHooks hooks = std::exchange(captures_->hooks, {});
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    (void)cudaGetLastError();  // clears the error of a call that was not permitted during a capture
    check(ended, "cudaStreamEndCapture", __LINE__);
    cudaGraphExec_t made = nullptr;
    const cudaError_t status = cudaGraphInstantiateWithFlags(&made, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiateWithFlags", __LINE__);
    const std::shared_ptr<CUgraphExec_st> graph_exec(
        made, [](cudaGraphExec_t g) { cudaGraphExecDestroy(g); });
    // The graph gets its memory now: a lack of memory is then reported by the capture.
    check(cudaGraphUpload(made, stream_), "cudaGraphUpload", __LINE__);
    return [graph = ReplayedGraph{std::move(hooks), graph_exec}](const LaunchContext& c) {
      for (const auto& hook : graph.hooks) hook->before(c);
      MT_CUDA(cudaGraphLaunch(graph.exec.get(), c.cuda));
      for (const auto& hook : graph.hooks) hook->after(c);
    };
  }

  // Returns the number of the last event that is ready; it is exact after synchronize().
  uint64_t completed() const override {
    std::lock_guard lock(mutex_);
    uint64_t known = completed_;
    for (const auto& [event, count] : marks_) {
      if (!event->ready()) break;
      known = count;
    }
    return known;
  }

 private:
  std::unique_ptr<CudaEvent> timing_event() const {
    return std::make_unique<CudaEvent>(events_, stream_, CudaEvent::Kind::timed);
  }

  std::shared_ptr<EventBackend> event_of_launch() const {
    if (is_captured()) return nullptr;
    return std::make_shared<CudaEvent>(events_, stream_, CudaEvent::Kind::plain);
  }

  bool is_captured() const {
    if (captures_->running == 0) return false;
    auto status = cudaStreamCaptureStatusNone;
    MT_CUDA(cudaStreamIsCapturing(stream_, &status));
    return status != cudaStreamCaptureStatusNone;
  }

  void pass_mark() {
    completed_ = marks_.front().second;
    marks_.pop_front();
  }

  const StreamId id_;
  int ordinal_;
  std::shared_ptr<AsyncError> late_;
  std::shared_ptr<Captures> captures_;
  const std::shared_ptr<CudaEventPool> events_;
  cudaStream_t stream_ = nullptr;
  PendingTimings timings_;
  mutable std::mutex mutex_;  // a watchdog thread may call completed()
  std::deque<std::pair<std::shared_ptr<CudaEvent>, uint64_t>> marks_;
  std::atomic<uint64_t> enqueued_{0};
  uint64_t completed_ = 0;
  Staging staging_{pinned};
};

// Returns a hint that names the driver that this build needs and the installed driver. Any driver
// of the runtime's major version suffices.
std::string driver_hint() {
  int version = 0;
  const bool known = cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
  const std::string here =
      known ? fmt::format("is for CUDA {}.{}", version / 1000, version % 1000 / 10) : "is missing";
  return fmt::format(
      "this build needs a driver for CUDA {}.0 or newer; the driver on this machine "
      "{}. Check CUDA_VISIBLE_DEVICES, too",
      CUDART_VERSION / 1000, here);
}

class CudaBackend : public DeviceBackend {
 public:
  explicit CudaBackend(int ordinal) : ordinal_(ordinal) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess)
      throw UserError(fmt::format("CUDA device {} was requested, but CUDA finds none: {} ({})",
                                  ordinal, cudaGetErrorString(status), cudaGetErrorName(status)),
                      driver_hint() + "; or set train.device=cpu and comm.backend=auto");
    if (ordinal < 0 || ordinal >= count)
      throw UserError(
          fmt::format("CUDA device {} was requested, but this machine has {}", ordinal, count),
          "devices are numbered from 0; check the driver and CUDA_VISIBLE_DEVICES");
    MT_CUDA(cudaSetDevice(ordinal));
    MT_CUDA(cudaGetDeviceProperties(&properties_, ordinal));
    clock_ = make_clock(ordinal, events_);
  }

  std::string description() const override {
    return fmt::format("{}, {} GiB, compute capability {}.{}", properties_.name,
                       properties_.totalGlobalMem >> 30, properties_.major, properties_.minor);
  }
  bool is_cuda() const override { return true; }
  int threads() const override { return 1; }
  int64_t memory_bytes() const override { return int64_t(properties_.totalGlobalMem); }
  std::unique_ptr<StreamBackend> make_stream(StreamId id) override {
    return std::make_unique<CudaStream>(id, ordinal_, late_, captures_, events_, clock_);
  }
  void* allocate(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, size_t(bytes));
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // clears the error, which is not sticky
      size_t free = 0, total = 0;
      (void)cudaMemGetInfo(&free, &total);
      throw RunError(fmt::format("out of GPU memory: {} MiB requested, {} of {} MiB free",
                                 bytes >> 20, free >> 20, total >> 20),
                     "reduce train.micro_batch_size or the model, or turn on recompute");
    }
    MT_CUDA(status);
    return memory;
  }
  void release(void* memory, int64_t) override { cudaFree(memory); }
  std::shared_ptr<void> host_memory(int64_t bytes) override { return pinned(bytes); }
  void begin_timings() override {
    MT_CUDA(cudaSetDevice(ordinal_));
    clock_->renew();
  }
  void push_range(const char* name) override { nvtxRangePushA(name); }
  void pop_range() override { nvtxRangePop(); }

 private:
  int ordinal_;
  cudaDeviceProp properties_{};
  // All streams share it: a stream that waited for failed work has failed too.
  const std::shared_ptr<AsyncError> late_ = std::make_shared<AsyncError>();
  const std::shared_ptr<Captures> captures_ = std::make_shared<Captures>();
  const std::shared_ptr<CudaEventPool> events_ = make_event_pool();
  std::shared_ptr<CudaClock> clock_;
};

}  // namespace

void copy_by_cuda(CUstream_st* stream, void* to, const void* from, int64_t bytes) {
  MT_CUDA(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, stream));
}

std::unique_ptr<DeviceBackend> make_cuda_backend(int ordinal) {
  return std::make_unique<CudaBackend>(ordinal);
}

}  // namespace mtrain::device
