// Tests features of gloo alone: addresses, its thread and connections, and failures that gloo
// itself would turn into long waits or the end of the process.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <latch>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "comm/gloo/epoll_interposer.h"
#include "comm/gloo/gloo_mesh.h"
#include "comm/gloo/gloo_transport.h"
#include "store/store.h"
#include "test/support/comm_testing.h"

namespace comm_gloo_test {

using namespace mtrain;
using namespace mtrain::comm;
using namespace mtrain::store;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_CASE("a rank is reached by an address that all hosts can use") {
  const std::vector<StorePath> one_host{{"::1", "::1"}, {"127.0.0.1", "127.0.0.1"}};
  CHECK(gloo_address(one_host, 0) == "127.0.0.1");
  CHECK(gloo_address(one_host, 1) == "127.0.0.1");
  // Rank 0 serves the store and reached it by a name that its host knows as 127.0.1.1.
  const std::vector<StorePath> two{{"127.0.1.1", "127.0.1.1"}, {"10.0.0.2", "10.0.0.1"}};
  CHECK(gloo_address(two, 0) == "10.0.0.1");
  CHECK(gloo_address(two, 1) == "10.0.0.2");
}

TEST_CASE("gloo's thread polls through the interposer of the programs that link it") {
  const uint64_t before = polls_seen();
  run_ranks(2, "gloo", [](TestRank& r) { r.world.world_group().barrier(r.stream); });
  CHECK(polls_seen() > before);
}

TEST_CASE("ranks talk over gloo only in a program that ignores SIGPIPE") {
  const StoreServer server({"127.0.0.1", 0, Token::random()});
  const GlooOptions options{server.address(), 0, 1, 1s};
  REQUIRE(sigpipe_is_deadly());
  CHECK_THROWS_AS(gloo_transport(options), BugError);
  const IgnoreSigpipe pipes;
  CHECK(gloo_transport(options));
}

namespace {

// Returns how many connections of this process are not paced by bbr.
int unpaced_connections() {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    char name[16] = {};
    length = sizeof name - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 &&
        std::string_view(name) != "bbr")
      ++found;
  }
  return found;
}

// Returns the message that `body` throws on each rank. The ranks do not abort each other.
template <class Body>
std::vector<std::string> failures(int ranks, double timeout_s, const Body& body) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  run_ranks(ranks, "gloo",
            [&](TestRank& outer) {
              // A failed stream fails its device for good.
              const auto device = Device::cpu(1);
              TestRank r{outer.world, *device, device->stream(device::StreamKind::dp_grad)};
              const Group g = r.world.group("dp", r.world.world_group().ranks());
              g.barrier(r.stream);
              device->synchronize();
              try {
                body(r, g);
                device->synchronize();
              } catch (const Error& e) {
                messages[size_t(r.rank())] = e.message();
              }
            },
            {.timeout_s = timeout_s});
  return messages;
}

bool tells(const std::string& message, const char* part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("connections are not paced") {
  run_ranks(2, "gloo", [](TestRank& r) {
    const Group g = r.world.world_group();
    g.barrier(r.stream);
    r.device.synchronize();
    // Both ends are in this process.
    if (unpaced_connections() < 2) throw BugError("bbr is left");
    g.barrier(r.stream);
    r.device.synchronize();
  });
}

TEST_CASE("sizes that differ between ranks are reported, and do not end the process") {
  const auto messages = failures(3, 0.5, [](TestRank& r, const Group& g) {
    const int64_t count = r.rank() == 1 ? 2000 : 1000;
    g.all_reduce(r.filled(count, DType::f32, [](int64_t) { return 1; }), Reduce::sum, r.stream);
  });
  for (const auto& m : messages) {
    CAPTURE(m);
    CHECK(tells(m, "is at a different call: all_reduce"));
    CHECK(tells(m, "2000"));
    CHECK(tells(m, "1000"));
  }
}

TEST_CASE("messages whose sizes differ end at the timeout, with the peer") {
  const auto messages = failures(2, 0.3, [](TestRank& r, const Group& g) {
    const Tensor t = Tensor::empty(r.stream, {r.rank() == 0 ? 10 : 20}, DType::f32);
    if (r.rank() == 0)
      g.send(t, 1, r.stream);
    else
      g.receive(t, 0, r.stream);
  });
  CAPTURE(messages[0], messages[1]);
  CHECK((tells(messages[0], "rank 1 of the group did not") ||
         tells(messages[1], "rank 0 of the group did not")));
}

TEST_CASE("an abort ends calls under way and later ones, everywhere, with the first reason") {
  const auto start = Clock::now();
  std::atomic<int> waiting{0};
  const auto messages = failures(4, 20, [&](TestRank& r, const Group& g) {
    if (r.rank() == 3) {
      while (waiting < 3) std::this_thread::sleep_for(5ms);
      std::this_thread::sleep_for(50ms);
      g.abort("the disk is full");
      g.abort("a later reason");
    }
    ++waiting;
    // Rank 3 begins this call after its abort; the others wait for each other in the call.
    const Tensor t = Tensor::empty(r.stream, {5 << 20}, DType::f32);
    g.all_reduce(t, Reduce::sum, r.stream);
  });
  CHECK(Clock::now() - start < 10s);
  for (const auto& m : messages) {
    CAPTURE(m);
    CHECK(tells(m, "rank 3 of the group gave up: the disk is full"));
  }
}

TEST_CASE("a group that has failed refuses later calls at once") {
  const auto messages = failures(2, 0.3, [](TestRank& r, const Group& g) {
    if (r.rank() == 1) return;
    try {
      g.barrier(r.stream);
      r.device.synchronize();
      throw BugError("nobody was missed");
    } catch (const CommError&) {
    }
    const auto start = Clock::now();
    Stream& other = r.device.stream(device::StreamKind::dp_param);
    g.barrier(other);
    try {
      other.synchronize();
    } catch (const CommError& e) {
      if (Clock::now() - start > 100ms) throw BugError("it has waited");
      throw;
    }
  });
  CHECK(tells(messages[0], "rank 1 of the group is gone"));
  CHECK(messages[1] == "");
}

TEST_CASE("a rank that does not connect is named when the timeout has passed") {
  const IgnoreSigpipe pipes;
  const StoreServer server({"127.0.0.1", 0, Token::random()});
  std::vector<std::shared_ptr<Transport>> transports(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      transports[size_t(rank)] = gloo_transport({server.address(), rank, 2, 300ms});
    });
  for (auto& t : threads) t.join();
  const auto start = Clock::now();
  try {
    transports[0]->connect("dp", {0, 1}, 0, Traffic::bulk);
    FAIL("nothing was thrown");
  } catch (const CommError& e) {
    CHECK(tells(e.message(), "group dp: rank 1 of the group did not connect"));
  }
  CHECK(Clock::now() - start < 3s);
}

namespace {

// A store in memory. With `stranger` it reports the ends of connections as if a stranger had one.
class MemoryStore : public gloo::rendezvous::Store {
 public:
  explicit MemoryStore(bool stranger) : stranger_(stranger) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    std::lock_guard lock(mutex_);
    values_[key] = data;
    if (stranger_ && key == "ends_1") values_[key] = {'1', '2', '7', '\n', 'o', 'w', 'n', '\n'};
    changed_.notify_all();
  }
  std::vector<char> get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 10s, [&] { return ended_ || values_.contains(key); });
    return values_[key];
  }
  // Ends all waits, as the job's store does when a rank has failed.
  void end() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  const bool stranger_;
  bool ended_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<char>> values_;
};

}  // namespace

TEST_CASE("a connection that a rank did not make is not taken for its own") {
  const IgnoreSigpipe pipes;
  const bool stranger = GENERATE(false, true);
  MemoryStore store(stranger);
  std::vector<std::string> messages(2);
  std::latch made(2);  // a rank that ends earlier closes its connections under the other
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      std::optional<GlooMesh> mesh;
      try {
        mesh.emplace(gloo::transport::tcp::CreateDevice("127.0.0.1"), store, rank, 2, 5s);
      } catch (const std::exception& e) {
        messages[size_t(rank)] = e.what();
      }
      made.arrive_and_wait();
    });
  for (auto& t : threads) t.join();
  CHECK(tells(messages[0], "rank 1 of the group is not at the other end") == stranger);
  // Rank 0 gives up where it sees a stranger, and rank 1 may notice.
  if (!stranger) CHECK(messages[1] == "");
}

TEST_CASE("a stranger who comes before a rank ends the start of both ranks at once, or of none") {
  const IgnoreSigpipe pipes;
  MemoryStore store(false);
  std::string messages[2];
  const auto rank = [&](int r) {
    return std::thread([&, r] {
      try {
        GlooMesh mesh(gloo::transport::tcp::CreateDevice("127.0.0.1"), store, r, 2, 5s);
      } catch (const std::exception& e) {
        messages[r] = e.what();
        store.end();
      }
    });
  };
  std::thread first = rank(0);
  const gloo::transport::tcp::Address address(store.get("0"));
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int connected = connect(stranger, reinterpret_cast<const sockaddr*>(&address.getSockaddr()),
                                sizeof(sockaddr_in));
  const std::string noise(480, '\x5a');
  [[maybe_unused]] const auto n = send(stranger, noise.data(), noise.size(), MSG_NOSIGNAL);
  const auto start = Clock::now();
  std::thread second = rank(1);
  first.join();
  second.join();
  close(stranger);
  CHECK(connected == 0);
  CHECK(Clock::now() - start < 4s);
  // The rank with the higher port connects to the other, and closes its own port.
  CHECK(messages[0].empty() == messages[1].empty());
}

}  // namespace comm_gloo_test
