#include "comm_testing.h"

#include "base/error.h"
#include "comm/thread/thread_transport.h"

namespace mtrain {

namespace {
template <class T>
Tensor upload(Stream& on, int64_t count, const std::function<double(int64_t)>& value) {
  std::vector<T> host(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, bf16>)
      host[size_t(i)] = bf16(float(value(i)));
    else
      host[size_t(i)] = T(value(i));
  }
  return Tensor::from_host(on, {count}, std::move(host));
}
template <class T>
std::vector<double> download(Stream& on, const Tensor& t) {
  std::vector<double> out;
  for (const T x : t.to_host<T>(on)) {
    if constexpr (std::is_same_v<T, bf16>)
      out.push_back(float(x));
    else
      out.push_back(double(x));
  }
  return out;
}
}  // namespace

Tensor TestRank::filled(int64_t count, DType dtype,
                        const std::function<double(int64_t)>& value) const {
  switch (dtype) {
    case DType::f32: return upload<float>(on, count, value);
    case DType::bf16: return upload<bf16>(on, count, value);
    case DType::f64: return upload<double>(on, count, value);
    case DType::i32: return upload<int32_t>(on, count, value);
    case DType::i64: return upload<int64_t>(on, count, value);
    case DType::u8: return upload<uint8_t>(on, count, value);
  }
  throw BugError("dtype");
}

std::vector<double> TestRank::values(const Tensor& t) const {
  switch (t.dtype()) {
    case DType::f32: return download<float>(on, t);
    case DType::bf16: return download<bf16>(on, t);
    case DType::f64: return download<double>(on, t);
    case DType::i32: return download<int32_t>(on, t);
    case DType::i64: return download<int64_t>(on, t);
    case DType::u8: return download<uint8_t>(on, t);
  }
  throw BugError("dtype");
}

std::vector<std::string> comm_backends() { return {"thread"}; }

void run_ranks(int ranks, const std::string& backend, const std::function<void(TestRank&)>& body,
               const TestRanksOptions& options) {
  const auto as_rank = [&](World& world) {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    TestRank rank{world, *device, device->stream("comm")};
    body(rank);
    device->synchronize();
  };
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.timeout_s));
  MT_CHECK(backend == "thread", "backend {}", backend);
  run_thread_ranks(ranks, as_rank, {.timeout = timeout, .link = options.link});
}

}  // namespace mtrain
