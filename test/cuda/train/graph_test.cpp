// Tests graphs of CUDA kernels: two streams in one graph, inputs that change, a graph's own memory,
// and what a capture refuses.
#include <optional>

#include <catch2/catch.hpp>

#include "device/graph.h"
#include "device_under_test.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tensor/tensor.h"

using namespace mtrain;

namespace {

Tensor numbers(Stream& stream, float value) {
  return Tensor::from_host<float>(stream, {1000}, std::vector<float>(1000, value));
}

}  // namespace

TEST_CASE("a graph of CUDA kernels on two streams runs at each replay on new inputs") {
  const auto device = device_under_test();
  Stream &compute = device->stream(device::StreamKind::compute),
         &other = device->stream(device::StreamKind::dp_param);
  const auto pool = device->allocator().make_pool();
  const Tensor x = numbers(compute, 1), sum = numbers(compute, 0);
  std::optional<device::Graph> graph;
  {
    device::Capture capture(compute, pool);
    const Tensor twice = ops::add(compute, x, x);
    other.wait(compute.record());
    const Tensor four = ops::add(other, twice, twice);
    compute.wait(other.record());
    ops::add_into(compute, four, sum);
    graph = capture.finish("region");
  }
  CHECK(graph->launches() == 3);
  CHECK(sum.to_host<float>(compute)[7] == 0);
  float expected = 0;
  for (float value : {1.0f, 3.0f, 10.0f}) {
    ops::fill(compute, x, value);
    graph->replay();
    // Would get the graph's memory if the graph did not keep it.
    const Tensor elsewhere = numbers(compute, -1);
    expected += 4 * value;
    CHECK(sum.to_host<float>(compute)[999] == expected);
    CHECK(elsewhere.to_host<float>(compute)[0] == -1);
  }
}

TEST_CASE("after a capture that was given up, CUDA kernels run as usual") {
  const auto device = device_under_test();
  Stream& compute = device->stream(device::StreamKind::compute);
  const auto pool = device->allocator().make_pool();
  const Tensor x = numbers(compute, 1);
  {
    device::Capture capture(compute, pool);
    ops::fill(compute, x, 5);
    CHECK_THROWS_WITH(x.to_host<float>(compute), Catch::Contains("cannot be part of a graph"));
  }
  CHECK(x.to_host<float>(compute)[3] == 1);
  ops::fill(compute, x, 6);
  CHECK(x.to_host<float>(compute)[3] == 6);
  device::Capture capture(compute, pool);
  ops::fill(compute, x, 7);
  device::Graph graph = capture.finish("region");
  graph.replay();
  CHECK(x.to_host<float>(compute)[3] == 7);
}

TEST_CASE(
    "a graph's kernels keep the memory for their intermediate results when others need more") {
  const auto device = device_under_test();
  Stream& compute = device->stream(device::StreamKind::compute);
  const auto pool = device->allocator().make_pool();
  // Sums over rows, which a kernel computes in parts.
  constexpr int64_t kRows = 3000, kMany = 64;
  const auto ones = [&](int64_t columns) {
    return Tensor::from_host<float>(compute, {kRows, columns},
                                    std::vector<float>(size_t(kRows * columns), 1));
  };
  const Tensor few = ones(3), many = ones(kMany);
  const Tensor sum = Tensor::from_host<float>(compute, {3}, std::vector<float>(3)),
               sums = Tensor::from_host<float>(compute, {kMany}, std::vector<float>(kMany));
  device::Capture capture(compute, pool);
  ops::column_sum(compute, few, sum);
  device::Graph graph = capture.finish("region");
  for (int replay = 1; replay <= 3; ++replay) {
    ops::column_sum(compute, many, sums);
    graph.replay();
    CHECK(sums.to_host<float>(compute)[size_t(kMany - 1)] == float(kRows * replay));
    CHECK(sum.to_host<float>(compute)[2] == float(kRows * replay));
  }
}
