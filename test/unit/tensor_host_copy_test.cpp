// Tests copies that the host reads later: it gets the values of the moment of the copy, and does
// not wait for work that was enqueued after it.
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "device/device.h"
#include "tensor/host_copy.h"

namespace tensor_host_copy_test {

using namespace mtrain;
using tensor::HostCopy;

TEST_CASE("a host copy has the values of its moment, and waits for no later work") {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  const Tensor x = Tensor::from_host<double>(stream, {2}, {1.5, 2.5}),
               n = Tensor::from_host<int64_t>(stream, {3}, {1, 2, 3});
  HostCopy copy(stream);
  CHECK_NOTHROW(copy.wait());  // nothing has begun
  copy.begin({x, Tensor(), n});
  std::atomic<bool> goes_on = false;
  stream.launch({.name = "later", .writes = {x}}, [&, to = Span(x)](const device::LaunchContext&) {
    while (!goes_on) std::this_thread::yield();
    to.as<double>()[0] = -1;
  });
  CHECK_THROWS_WITH(copy.values<double>(0), Catch::Contains("may still be running"));
  copy.wait();
  CHECK(copy.values<double>(0) == std::vector<double>{1.5, 2.5});
  CHECK(copy.values<float>(1).empty());
  CHECK(copy.values<int64_t>(2) == std::vector<int64_t>{1, 2, 3});
  CHECK_THROWS_WITH(copy.values<float>(2), Catch::Contains("is read as fp32"));
  goes_on = true;
  copy.begin({x});
  copy.wait();
  CHECK(copy.values<double>(0) == std::vector<double>{-1, 2.5});
}

TEST_CASE("a host copy that is dropped waits for its copies, and reports their failure when read") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  const Tensor x = Tensor::from_host<float>(stream, {1}, {1.0f});
  {
    HostCopy dropped(stream);
    dropped.begin({x});
  }
  HostCopy copy(stream);
  stream.launch({.name = "fails"}, [](const device::LaunchContext&) { throw RunError("no"); });
  try {
    copy.begin({x});
    copy.wait();
    FAIL("the failure is lost");
  } catch (const RunError& e) {
    CHECK_THAT(e.message(), Catch::Contains("in `fails`"));
  }
}

}  // namespace tensor_host_copy_test
