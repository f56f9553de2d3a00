// Tests the workspace that the kernels of a launch take, on a device that does the work of a launch
// when it is enqueued, as CUDA does.
#include <catch2/catch.hpp>

#include <optional>
#include <thread>

#include "base/error.h"
#include "device/backend.h"
#include "device/graph.h"
#include "ops/launch_workspace.h"

namespace ops_launch_workspace_test {

using namespace mtrain;
using Catch::Contains;
using kernels::WorkspaceScope;
using ops::LaunchWorkspace;

namespace {

constexpr int64_t kMiB = 1 << 20;

// A backend that does the work of a launch when it is enqueued. In a capture, too, since kernels
// then take their memory; a replay only reuses the addresses.
class InlineBackend : public device::DeviceBackend {
 public:
  struct Control {
    int64_t limit = INT64_MAX, used = 0;  // bytes
    int64_t waits = 0;                    // how often the host has waited for a stream
    bool capturing = false;
  };
  explicit InlineBackend(std::shared_ptr<Control> control) : control_(std::move(control)) {}

  std::string description() const override { return "an inline GPU"; }
  bool is_cuda() const override { return true; }
  int threads() const override { return 1; }
  std::unique_ptr<device::StreamBackend> make_stream(device::StreamId) override {
    return std::make_unique<InlineStream>(control_);
  }
  void* allocate(int64_t bytes) override {
    if (control_->used + bytes > control_->limit)
      throw RunError(fmt::format("out of memory: {} MiB wanted", bytes >> 20), "buy some");
    control_->used += bytes;
    return ::operator new(size_t(bytes), std::align_val_t(512));
  }
  void release(void* memory, int64_t bytes) override {
    control_->used -= bytes;
    ::operator delete(memory, std::align_val_t(512));
  }

 private:
  class Past : public device::EventBackend {
   public:
    bool ready() const override { return true; }
    void wait() const override {}
  };
  class InlineStream : public device::StreamBackend {
   public:
    explicit InlineStream(std::shared_ptr<Control> control) : control_(std::move(control)) {}
    void enqueue(device::LaunchTag tag, device::Work work) override {
      try {
        work({});
      } catch (...) {
        std::rethrow_exception(
            with_culprit(std::current_exception(), tag, device::StreamKind::compute));
      }
    }
    std::shared_ptr<device::EventBackend> record() override { return std::make_shared<Past>(); }
    void wait(device::LaunchTag, std::shared_ptr<device::EventBackend>) override {}
    void upload(device::LaunchTag, void*, std::shared_ptr<const void>, const void*,
                int64_t) override {}
    void download(device::LaunchTag, void*, const void*, int64_t) override {}
    void synchronize() override {
      MT_CHECK(!control_->capturing, "a wait within a capture");
      ++control_->waits;
    }
    void begin_capture() override { control_->capturing = true; }
    device::Work end_capture() override {
      control_->capturing = false;
      return [](const device::LaunchContext&) {};
    }
    uint64_t completed() const override { return 0; }

   private:
    std::shared_ptr<Control> control_;
  };
  std::shared_ptr<Control> control_;
};

struct Bench {
  std::shared_ptr<InlineBackend::Control> control = std::make_shared<InlineBackend::Control>();
  std::unique_ptr<Device> device = Device::on(std::make_unique<InlineBackend>(control));
  Stream &compute = device->stream(device::StreamKind::compute),
         &other = device->stream(device::StreamKind::dp_grad);
  device::Allocator& memory = device->allocator();

  device::MemoryUsage workspace() const { return memory.usage(device::MemoryCategory::workspace); }
  device::Buffer buffer(int64_t bytes) {
    return memory.allocate(bytes, device::MemoryCategory::activations, compute);
  }
};

// Launches a kernel that takes so many bytes one after the other, and returns their addresses.
std::vector<void*> run(Stream& stream, const std::vector<int64_t>& bytes) {
  std::vector<void*> taken;
  stream.launch({.name = "kernel"}, [&](const device::LaunchContext&) {
    LaunchWorkspace workspace(stream);
    const WorkspaceScope from(workspace);
    for (const int64_t b : bytes) taken.push_back(WorkspaceScope::current()->allocate(size_t(b)));
    for (void* p : taken) WorkspaceScope::current()->release(p);
  });
  return taken;
}

}  // namespace

TEST_CASE("memory of a launch's kernels is counted as workspace, and free when it returns") {
  Bench b;
  const auto first = run(b.compute, {32 * kMiB, 1000});
  CHECK(b.workspace().current == 0);
  CHECK(b.workspace().peak == 32 * kMiB + 1024);
  CHECK(b.memory.total().peak == 32 * kMiB + 1024);
  CHECK(b.memory.peaks() ==
        "32.0 MiB: params 0 B, grads 0 B, optimizer 0 B, activations 0 B, "
        "buffers 0 B, workspace 32.0 MiB");
  const int64_t reserved = b.memory.reserved().current;
  CHECK(run(b.compute, {32 * kMiB, 1000}) == first);
  // A tensor of that stream may have this memory, but no tensor of another stream.
  CHECK(b.buffer(32 * kMiB)->data == first[0]);
  CHECK(b.memory.reserved().current == reserved);
  CHECK(run(b.other, {32 * kMiB})[0] != first[0]);
  CHECK(b.workspace().peak == 32 * kMiB + 1024);  // never at once
}

TEST_CASE("memory that a kernel keeps when it throws is free, and other memory is not taken back") {
  Bench b;
  CHECK_THROWS_WITH(b.compute.launch({.name = "kernel"},
                                     [&](const device::LaunchContext&) {
                                       LaunchWorkspace workspace(b.compute);
                                       workspace.allocate(kMiB);
                                       throw RunError("broken");
                                     }),
                    Contains("broken"));
  CHECK(b.workspace().current == 0);
  LaunchWorkspace workspace(b.compute);
  int elsewhere = 0;
  void* const mine = workspace.allocate(kMiB);
  workspace.release(&elsewhere);  // logged
  CHECK(b.workspace().current == kMiB);
  workspace.release(mine);
  CHECK(b.workspace().current == 0);
}

TEST_CASE("where workspace comes from holds for a scope and for its thread alone") {
  Bench b;
  CHECK(WorkspaceScope::current() == nullptr);
  LaunchWorkspace outer(b.compute), inner(b.compute);
  {
    const WorkspaceScope from(outer);
    {
      const WorkspaceScope nested(inner);
      CHECK(WorkspaceScope::current() == &inner);
    }
    CHECK(WorkspaceScope::current() == &outer);
    const void* elsewhere = &b;
    std::thread([&] { elsewhere = WorkspaceScope::current(); }).join();
    CHECK(elsewhere == nullptr);
  }
  CHECK(WorkspaceScope::current() == nullptr);
}

TEST_CASE("where the device has no memory for a launch's kernels, cached memory goes back first") {
  Bench b;
  b.control->limit = 64 * kMiB;
  const device::Buffer kept = b.buffer(20 * kMiB);
  b.buffer(30 * kMiB);  // and dropped
  CHECK(b.control->used == 50 * kMiB);
  run(b.compute, {40 * kMiB});
  CHECK(b.control->waits == 2);  // for both streams
  CHECK(b.control->used == 60 * kMiB);
  // The opposite case: a tensor gets memory that kernels have used.
  const device::Buffer large = b.buffer(44 * kMiB);
  CHECK(b.control->used == 64 * kMiB);
}

TEST_CASE("a lack of memory for a launch's kernels names the launch and what has the memory") {
  Bench b;
  b.control->limit = 64 * kMiB;
  const device::Buffer kept = b.buffer(20 * kMiB);
  try {
    run(b.compute, {32 * kMiB, 32 * kMiB});
    FAIL("taken beyond the limit");
  } catch (const RunError& e) {
    CHECK_THAT(e.message(), Contains("32 MiB wanted") && Contains("an inline GPU") &&
                                Contains("activations 20.0 MiB") &&
                                Contains("workspace 32.0 MiB") && Contains("in `kernel`"));
    CHECK(e.hint() == "buy some");
  }
  CHECK(b.workspace().current == 0);
  CHECK(run(b.compute, {32 * kMiB})[0] != nullptr);
}

TEST_CASE("kernels in a capture take the graph's memory, which stays its own until it ends") {
  Bench b;
  const auto outside = run(b.compute, {32 * kMiB});
  auto pool = b.memory.make_pool();
  std::optional<device::Graph> graph;
  std::vector<void*> captured;
  {
    device::Capture capture(b.compute, pool);
    captured = run(b.compute, {32 * kMiB});
    CHECK(run(b.compute, {32 * kMiB}) == captured);
    graph = capture.finish("region");
  }
  CHECK(b.memory.in_use(*pool) == 0);
  CHECK(captured != outside);
  // Nothing else gets it, even if memory is short.
  CHECK(run(b.compute, {32 * kMiB}) == outside);
  b.control->limit = b.control->used;
  CHECK_THROWS_AS(b.buffer(33 * kMiB), RunError);
  CHECK(b.control->used == 32 * kMiB);  // memory that is in no graph went back
  CHECK(run(b.compute, {32 * kMiB}) != captured);
  graph->replay();
  graph.reset();
  pool.reset();
  CHECK(b.buffer(40 * kMiB) != nullptr);
}

TEST_CASE("a lack of memory within a capture waits for nothing and gives nothing back") {
  Bench b;
  b.buffer(40 * kMiB);  // and dropped
  b.control->limit = 64 * kMiB;
  const auto pool = b.memory.make_pool();
  {
    device::Capture capture(b.compute, pool);
    CHECK_THROWS_WITH(run(b.compute, {32 * kMiB}), Contains("out of memory"));
    CHECK(b.control->waits == 0);
    CHECK(b.control->used == 40 * kMiB);
  }
  run(b.compute, {64 * kMiB});  // the capture is given up as usual
}

}  // namespace ops_launch_workspace_test
