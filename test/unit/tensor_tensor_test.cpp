#include <catch2/catch.hpp>
#include <numeric>

#include "base/error.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace tensor_tensor_test {

using namespace mtrain;
using namespace mtrain::tensor;
using Catch::Contains;

TEST_CASE("a tensor goes to the device and back") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  const Tensor t = Tensor::from_host(compute, {2, 3, 4}, values, device::MemoryCategory::params);
  CHECK(t.shape() == Shape{2, 3, 4});
  CHECK(t.dtype() == DType::f32);
  CHECK(t.count() == 24);
  CHECK(t.bytes() == 96);
  CHECK(t.dim(-1) == 4);
  CHECK(t.to_host<float>(compute) == values);
  CHECK(device->allocator().usage(device::MemoryCategory::params).current == 512);
  CHECK_THROWS_AS(t.to_host<int32_t>(compute), BugError);
  CHECK_THROWS_WITH((Tensor::from_host<float>(compute, {2, 2}, {1, 2, 3})),
                    Contains("3 values for (2, 2)"));

  const Tensor half = Tensor::from_host<bf16>(compute, {2}, {bf16(1.5f), bf16(-2.0f)});
  CHECK(half.to_host_float(compute) == std::vector<float>{1.5f, -2.0f});
  const Tensor ids = Tensor::from_host<int64_t>(compute, {1}, {INT64_MIN});
  CHECK(ids.dtype() == DType::i64);
  CHECK(ids.to_host<int64_t>(compute) == std::vector<int64_t>{INT64_MIN});
  CHECK_THROWS_AS(ids.to_host_float(compute), BugError);
}

TEST_CASE("views share memory") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  const Tensor t = Tensor::from_host(compute, {6, 4}, values);

  const Tensor v = t.view({2, 3, 4});
  CHECK(v.data() == t.data());
  CHECK_THROWS_WITH(t.view({5, 5}), Contains("(6, 4) seen as (5, 5)"));

  const Tensor rows = t.rows(2, 5);
  CHECK(rows.shape() == Shape{3, 4});
  CHECK(rows.to_host<float>(compute) ==
        std::vector<float>(values.begin() + 8, values.begin() + 20));
  CHECK(rows.rows(1, 2).to_host<float>(compute) == std::vector<float>{12, 13, 14, 15});
  CHECK(v.rows(1, 2).shape() == Shape{1, 3, 4});
  CHECK(v.rows(1, 2).to_host<float>(compute)[0] == 12);
  CHECK(t.rows(6, 6).count() == 0);
  CHECK_THROWS_AS(t.rows(3, 7), BugError);
  CHECK_THROWS_AS(t.rows(3, 2), BugError);
  CHECK_THROWS_AS(t.rows(-1, 2), BugError);

  const Tensor flat = rows.flat(3, {5});
  CHECK(flat.to_host<float>(compute) == std::vector<float>{11, 12, 13, 14, 15});
  CHECK_THROWS_AS(rows.flat(8, {5}), BugError);
  CHECK_THROWS_AS(rows.flat(-1, {5}), BugError);

  const device::Access access = flat;
  CHECK(access.bytes == 20);
  CHECK(access.data == static_cast<char*>(t.data()) + 44);
  CHECK(access.dtype == DType::f32);
  CHECK(access.storage != nullptr);
  const Span span = flat;
  CHECK(span.count == 5);
  CHECK(span.as<float>()[0] == 11);
}

TEST_CASE("absent and empty tensors are harmless") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);
  const Tensor absent;
  CHECK_FALSE(absent);
  CHECK(absent.data() == nullptr);
  CHECK(absent.count() == 0);
  CHECK(absent.bytes() == 0);
  CHECK_FALSE(ConstSpan(absent));
  CHECK(absent.to_host<float>(compute).empty());
  CHECK_THROWS_AS(absent.flat(0, {1}), BugError);
  const Tensor empty = Tensor::from_host<float>(compute, {0, 4}, {});
  CHECK(empty);
  CHECK(empty.count() == 0);
  CHECK(empty.to_host<float>(compute).empty());
  CHECK(empty.rows(0, 0).count() == 0);
}

TEST_CASE("a view keeps its memory alive") {
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);
  Tensor view;
  {
    const Tensor t = Tensor::from_host<float>(compute, {3}, {1, 2, 3});
    view = t.rows(2, 3);
  }
  const Tensor next = Tensor::from_host<float>(compute, {3}, {7, 8, 9});
  CHECK(next.data() != static_cast<char*>(view.data()) - 8);
  CHECK(view.to_host<float>(compute) == std::vector<float>{3});
}

}  // namespace tensor_tensor_test
