// Measures how fast two ranks of this host exchange data.
#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "base/strings.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/process/shared_memory_transport.h"
#include "device/device.h"
#include "run/doctor.h"
#include "store/store.h"

namespace mtrain::run {

namespace {

constexpr int64_t kLinkElements = int64_t(4) << 20;  // of fp32: 16 MiB
constexpr int kExchanges = 4;
constexpr std::chrono::seconds kLinkTimeout{10};

using MakeTransport =
    std::function<std::shared_ptr<comm::Transport>(const store::StoreAddress&, int rank)>;

// Returns the bytes per second of an all-reduce of two ranks.
double rate_of_link(const MakeTransport& make) {
  const IgnoreSigpipe pipes;
  const store::StoreServer server({"127.0.0.1", 0, Token::random()});
  double best = 0;
  std::exception_ptr failures[2];
  const auto run_rank = [&](int rank) {
    try {
      comm::World world(rank, 2, make(server.address(), rank));
      const auto device = Device::cpu(1);
      Stream& stream = device->stream(device::StreamKind::dp_grad);
      const Tensor data =
          Tensor::from_host(stream, {kLinkElements}, std::vector<float>(size_t(kLinkElements)));
      const comm::Group group = world.group("doctor", {0, 1});
      for (int i = 0; i < kExchanges; ++i) {
        const auto began = std::chrono::steady_clock::now();
        group.all_reduce(data, comm::Reduce::sum, stream);
        device->synchronize();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        if (rank == 0) best = std::max(best, double(kLinkElements) * 4 / took.count());
      }
    } catch (...) {
      failures[rank] = std::current_exception();
    }
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return best;
}

DoctorRow link_row(const std::string& check, const std::string& hint, const MakeTransport& make) {
  try {
    const double rate = rate_of_link(make);
    constexpr double kLeastRate = 50e6;
    const bool slow = rate < kLeastRate;
    return {check, fmt::format("{}/s", human_bytes(rate)), slow ? Verdict::warning : Verdict::ok,
            slow ? hint : ""};
  } catch (const std::exception& e) {
    return {check, e.what(), Verdict::fault, hint};
  }
}

}  // namespace

std::vector<DoctorRow> examine_links() {
  return {link_row("all-reduce, shared memory",
                   "ranks of a host exchange in memory; look for a process that takes all cores",
                   [](const store::StoreAddress& at, int rank) {
                     return comm::shared_memory_transport(
                         std::make_shared<store::Store>(at, kLinkTimeout), rank, 2, kLinkTimeout);
                   }),
          link_row("all-reduce, Gloo over loopback",
                   "ranks of several hosts use such sockets; look for a firewall on loopback",
                   [](const store::StoreAddress& at, int rank) {
                     return comm::gloo_transport(
                         {.store = at, .rank = rank, .size = 2, .timeout = kLinkTimeout});
                   })};
}

}  // namespace mtrain::run
