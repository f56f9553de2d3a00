// A device that runs nothing: its records, its memory, and what the host reads from it.
#include <cmath>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "device/device.h"
#include "device/recording/records.h"

namespace device_recording_test {

using namespace mtrain;
using namespace mtrain::device;

namespace {

Access all_of(const Buffer& b, DType dtype) { return {b->data, b->bytes, b, dtype}; }

}  // namespace

TEST_CASE("a recording device runs no work, and events pass at once") {
  const auto device = Device::recording(DeviceKind::cpu);
  CHECK(device->is_recording());
  CHECK_FALSE(device->is_cuda());
  CHECK(Device::recording(DeviceKind::cuda)->is_cuda());
  CHECK_FALSE(Device::cpu(1)->is_recording());
  Stream& compute = device->stream(StreamKind::compute);
  compute.launch({.name = "bug"}, [](const LaunchContext&) { throw BugError("it ran"); });
  const Event end = compute.record();
  CHECK(end.ready());
  compute.synchronize();
  CHECK(compute.completed() == 1);
}

TEST_CASE("a terabyte of buffers takes no memory, and is counted by category") {
  const auto device = Device::recording(DeviceKind::cuda);
  Stream& compute = device->stream(StreamKind::compute);
  constexpr int64_t kTera = int64_t{1} << 40;
  {
    const Buffer params = device->allocator().allocate(kTera, MemoryCategory::params, compute),
                 other = device->allocator().allocate(4096, MemoryCategory::grads, compute);
    CHECK(params->data != other->data);
    CHECK(device->allocator().usage(MemoryCategory::params).current == kTera);
    CHECK(device->allocator().total().current == kTera + 4096);
  }
  CHECK(device->allocator().total().current == 0);
  CHECK(device->allocator().total().peak == kTera + 4096);
}

TEST_CASE("records have names, FLOPs, bytes by category, scopes and what a wait is for") {
  for (const bool runs : {false, true}) {
    const auto device = runs ? Device::cpu(1) : Device::recording(DeviceKind::cpu);
    CAPTURE(device->description());
    Stream &compute = device->stream(StreamKind::compute), &tp = device->stream(StreamKind::tp);
    const Buffer weight = device->allocator().allocate(1024, MemoryCategory::params, compute),
                 y = device->allocator().allocate(512, MemoryCategory::activations, compute);
    Records records;
    device->set_records(&records);
    {
      const Device::Scope scope(*device, "layer");
      compute.launch({.name = "matmul",
                      .reads = {all_of(weight, DType::f32)},
                      .writes = {all_of(y, DType::f32)},
                      .flops = 77},
                     [](const LaunchContext&) {});
    }
    const std::vector<int> ranks{0, 3};
    tp.wait(compute.record());
    tp.launch({.name = "all_reduce", .wire_bytes = 9}, [](const LaunchContext&) {});
    records.set_group("tp", ranks);
    device->set_records(nullptr);
    compute.launch({.name = "later"}, [](const LaunchContext&) {});
    device->synchronize();

    REQUIRE(records.items().size() == 3);
    const LaunchRecord &matmul = records.items()[0], &wait = records.items()[1],
                       &reduce = records.items()[2];
    CHECK(matmul.name == std::string("matmul"));
    CHECK(matmul.number == 1);
    CHECK(matmul.flops == 77);
    CHECK(matmul.bytes() == 1536);
    CHECK(matmul.read[size_t(MemoryCategory::params)] == 1024);
    CHECK(matmul.written[size_t(MemoryCategory::activations)] == 512);
    CHECK(*matmul.scope == "layer");
    CHECK(matmul.group == -1);
    CHECK(wait.waits_for == StreamId(StreamKind::compute));
    CHECK(wait.waits_number == 1);
    CHECK(wait.stream == StreamId(StreamKind::tp));
    CHECK(reduce.wire_bytes == 9);
    REQUIRE(reduce.group == 0);
    CHECK(records.groups()[0].name == "tp");
    CHECK(records.groups()[0].ranks == ranks);
  }
}

TEST_CASE("the host reads what it has copied to a recording device, and 1 or 0 elsewhere") {
  const auto device = Device::recording(DeviceKind::cpu);
  Stream& compute = device->stream(StreamKind::compute);
  const Buffer counts = device->allocator().allocate(16, MemoryCategory::buffers, compute),
               norm = device->allocator().allocate(4, MemoryCategory::buffers, compute);
  const auto own = std::make_shared<std::vector<int64_t>>(std::vector<int64_t>{5, -7});
  compute.upload({counts->data, 16, counts, DType::i64}, own, own->data());
  std::vector<int64_t> read(2);
  compute.download(read.data(), {counts->data, 16, counts, DType::i64});
  CHECK(read == *own);
  float value = 0;
  compute.download(&value, {norm->data, 4, norm, DType::f32});
  CHECK(value == 1);
  int32_t number = 3;
  compute.download_later(&number, {norm->data, 4, norm, DType::i32});
  CHECK(number == 0);
}

TEST_CASE("new buffers at the address of an earlier one have no value of it") {
  const auto device = Device::recording(DeviceKind::cpu);
  Stream& compute = device->stream(StreamKind::compute);
  const void* before = nullptr;
  for (const bool uploads : {true, false}) {
    const Buffer b = device->allocator().allocate(8, MemoryCategory::buffers, compute);
    if (before) CHECK(b->data == before);
    before = b->data;
    const auto own = std::make_shared<int64_t>(-1);
    if (uploads) compute.upload({b->data, 8, b, DType::i64}, own, own.get());
    double read = 0;
    compute.download(&read, {b->data, 8, b, DType::f64});
    CHECK((uploads ? std::isnan(read) : read == 1));
  }
}

}  // namespace device_recording_test
