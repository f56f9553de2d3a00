#include "test/support/comm_testing.h"

#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/process/shared_memory_transport.h"
#include "comm/thread/thread_transport.h"

namespace mtrain {

namespace {
template <class T>
Tensor upload(Stream& stream, int64_t count, const std::function<double(int64_t)>& value) {
  std::vector<T> host(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 2)  // bf16 and f16
      host[size_t(i)] = T(float(value(i)));
    else
      host[size_t(i)] = T(value(i));
  }
  return Tensor::from_host(stream, {count}, std::move(host));
}
template <class T>
std::vector<double> download(Stream& stream, const Tensor& t) {
  std::vector<double> out;
  for (const T x : t.to_host<T>(stream)) {
    if constexpr (sizeof(T) == 2)
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
    case DType::f32: return upload<float>(stream, count, value);
    case DType::bf16: return upload<bf16>(stream, count, value);
    case DType::f16: return upload<f16>(stream, count, value);
    case DType::f64: return upload<double>(stream, count, value);
    case DType::i32: return upload<int32_t>(stream, count, value);
    case DType::i64: return upload<int64_t>(stream, count, value);
    case DType::u8: return upload<uint8_t>(stream, count, value);
    default: break;
  }
  throw BugError("dtype");
}

std::vector<double> TestRank::values(const Tensor& t) const {
  switch (t.dtype()) {
    case DType::f32: return download<float>(stream, t);
    case DType::bf16: return download<bf16>(stream, t);
    case DType::f16: return download<f16>(stream, t);
    case DType::f64: return download<double>(stream, t);
    case DType::i32: return download<int32_t>(stream, t);
    case DType::i64: return download<int64_t>(stream, t);
    case DType::u8: return download<uint8_t>(stream, t);
    default: break;
  }
  throw BugError("dtype");
}

std::vector<std::string> comm_backends() { return {"thread", "shared_memory", "gloo"}; }

namespace {

// Each rank has a store, a transport and mappings of its own, as a process would.
void run_process_like_ranks(int ranks, const std::string& backend,
                            const std::function<void(comm::World&)>& body,
                            std::chrono::nanoseconds timeout, comm::Link link) {
  const IgnoreSigpipe pipes;
  const store::StoreServer server({"127.0.0.1", 0, Token::random()});
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::unique_ptr<comm::World> world;
      try {
        std::shared_ptr<comm::Transport> transport;
        if (backend == "gloo")
          transport = comm::gloo_transport(
              {.store = server.address(), .rank = rank, .size = ranks, .timeout = timeout});
        else
          transport = comm::shared_memory_transport(
              std::make_shared<store::Store>(server.address(), std::chrono::seconds(20)), rank,
              ranks, timeout);
        world = std::make_unique<comm::World>(rank, ranks, std::move(transport), link);
        body(*world);
      } catch (...) {
        std::unique_lock lock(mutex);
        if (!first) first = std::current_exception();
        lock.unlock();
        if (world) world->abort("it has failed");
      }
    });
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace

void run_ranks(int ranks, const std::string& backend, const std::function<void(TestRank&)>& body,
               const TestRanksOptions& options) {
  const auto as_rank = [&](comm::World& world) {
    const auto device =
        options.device ? options.device() : Device::cpu(1, {.stream_sanitizer = true});
    TestRank rank{world, *device, device->stream(device::StreamKind::dp_grad)};
    body(rank);
    device->synchronize();
  };
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.timeout_s));
  if (backend == "thread")
    comm::run_thread_ranks(ranks, as_rank, {.timeout = timeout, .link = options.link});
  else
    run_process_like_ranks(ranks, backend, as_rank, timeout, options.link);
}

}  // namespace mtrain
