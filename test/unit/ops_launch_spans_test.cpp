// Tests that a launch reads and writes exactly what the argument struct of its kernel names,
// without a list beside it.
#include <catch2/catch.hpp>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "ops/enqueue.h"

namespace ops_launch_spans_test {

using namespace mtrain;
using Catch::Contains;

namespace {

// A kernel that no operation lists: it has spans at every depth.
struct Rows {
  ConstSpan begin;
  int64_t first = 0;
};
struct Nested {
  Rows rows;
  bool causal = true;
  Span statistics;
};
struct Planted {
  ConstSpan x;
  DType type = DType::f32;
  Nested nested;
  Span y;
  std::vector<Rows> blocks;
  float scale = 1;
  ConstSpan optional;
};
void run_cpu(const Planted&) {}
void run_cuda(const Planted&, CUstream_st*) {}

struct Rig {
  std::unique_ptr<Device> device = Device::cpu(1, {.stream_sanitizer = true});
  Stream &compute = device->stream(device::StreamKind::compute),
         &other = device->stream(device::StreamKind::dp_grad);
  Tensor x = take(), begin = take(), statistics = take(), y = take(), block = take(),
         optional = take();

  Tensor take() { return Tensor::empty(compute, {8}, DType::f32); }
  Planted args() const {
    return {.x = x,
            .nested = {.rows = {begin}, .statistics = statistics},
            .y = y,
            .blocks = {Rows{block}, Rows{block}}};
  }
};

std::vector<const void*> memory(const std::vector<device::Access>& accesses) {
  std::vector<const void*> all;
  for (const device::Access& a : accesses) all.push_back(a.data);
  return all;
}

}  // namespace

TEST_CASE("a launch reads the const spans and writes the others of its argument struct") {
  Rig r;
  Planted args = r.args();
  const auto seen = [&] {
    std::vector<device::LaunchInfo> infos;
    r.device->set_launch_check(
        [&](Stream&, const device::LaunchInfo& info) { infos.push_back(info); });
    ops::enqueue(r.compute, "planted", args);
    r.device->set_launch_check({});
    REQUIRE(infos.size() == 1);
    return infos[0];
  };
  using Memory = std::vector<const void*>;
  device::LaunchInfo info = seen();
  CHECK(memory(info.reads) == Memory{r.x.data(), r.begin.data(), r.block.data()});
  CHECK(memory(info.writes) == Memory{r.statistics.data(), r.y.data()});
  CHECK(info.reads[0].bytes == 32);
  CHECK(info.reads[0].storage->data == r.x.data());
  CHECK_FALSE(info.writes[1].partial);

  args.optional = r.optional;
  args.y.use = SpanUse::write_part;
  args.nested.statistics.use = SpanUse::read;
  info = seen();
  CHECK(memory(info.reads) ==
        Memory{r.x.data(), r.begin.data(), r.statistics.data(), r.block.data(), r.optional.data()});
  CHECK(memory(info.writes) == Memory{r.y.data()});
  CHECK(info.writes[0].partial);
}

TEST_CASE("the stream sanitizer sees every span of an argument struct") {
  Rig r;
  const auto race = [&](const Tensor& changed) {
    const Event before = r.compute.record();
    r.other.wait(before);  // edge: the launches before -> the change
    r.other.launch({.name = "change", .writes = {changed}}, [](const device::LaunchContext&) {});
    Planted args = r.args();
    args.optional = r.optional;
    CHECK_THROWS_WITH(ops::enqueue(r.compute, "planted", args),
                      Contains("`planted` on stream compute") && Contains("`change`"));
    r.compute.wait(r.other.record());  // edge: the change -> the launches after
  };
  for (const Tensor* t : {&r.x, &r.begin, &r.statistics, &r.y, &r.block, &r.optional}) race(*t);
}

TEST_CASE("a range within another range of the same launch is listed once") {
  Rig r;
  Planted args = r.args();
  args.nested.rows.begin = r.x.flat(2, {6});
  args.optional = r.x.flat(0, {8});
  const device::LaunchInfo info = ops::launch_of("planted", args);
  CHECK(memory(info.reads) == std::vector<const void*>{r.x.data(), r.block.data()});
}

TEST_CASE("an operand without an owner is refused, since its memory could be reused too early") {
  Rig r;
  std::vector<float> host(8);
  Planted args = r.args();
  args.x = {host.data(), 8, DType::f32};
  CHECK_THROWS_WITH(ops::enqueue(r.compute, "planted", args),
                    Contains("`planted`: no allocation owns the memory of an operand"));
}

}  // namespace ops_launch_spans_test
