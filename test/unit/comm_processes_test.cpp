// The rendezvous store, and ranks as real processes that die.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <thread>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/process/host_process.h"
#include "comm/process/shared_memory_transport.h"
#include "device/device.h"
#include "store/store.h"

namespace comm_processes_test {

using namespace mtrain;
using namespace mtrain::comm;
using namespace mtrain::store;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_CASE("one client gets the value that another sets, also if it asks first") {
  const StoreServer server({"127.0.0.1", 0, Token::random()});
  Store a(server.address(), 10s), b(server.address(), 10s);
  a.set("k", "v");
  CHECK(b.get("k") == "v");
  a.set("k", std::string(300000, 'x'));
  CHECK(b.get("k").size() == 300000);
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    a.set("late", "came");
  });
  CHECK(b.get("late") == "came");
  later.join();
  CHECK(a.add("n", 2) == 2);
  CHECK(b.add("n", -5) == -3);
  CHECK(a.get("n") == "-3");
  a.set("", "empty key");
  CHECK(b.get("") == "empty key");
}

TEST_CASE("a job that has failed ends its ranks' waits, with the first reason") {
  StoreServer server({"127.0.0.1", 0, Token::random()});
  Store waiting(server.address(), 10s), failing(server.address(), 10s);
  failing.set("here", "v");
  CHECK(waiting.failure().empty());
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    failing.fail("rank 3 gave up: the disk is full");
    failing.fail("rank 0 gave up: rank 3 has ended");
  });
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(waiting.get("never"), "rank 3 gave up: the disk is full");
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  later.join();
  CHECK_THROWS_WITH(waiting.get("never"), "rank 3 gave up: the disk is full");
  CHECK(waiting.get("here") == "v");
  CHECK(waiting.failure() == "rank 3 gave up: the disk is full");
}

TEST_CASE("a store answers many clients at once") {
  const StoreServer server({"127.0.0.1", 0, Token::random()});
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i)
    threads.emplace_back([&] {
      Store s(server.address(), 10s);
      s.add("arrived", 1);
      while (std::stoi(s.get("arrived")) < 16) std::this_thread::sleep_for(1ms);
    });
  for (auto& t : threads) t.join();
  SUCCEED();
}

TEST_CASE("the error of a wait names the key and the address") {
  const StoreServer server({"127.0.0.1", 0, Token::random()});
  Store s(server.address(), 10s);
  try {
    s.get("nobody sets this", 100ms);
    FAIL("no error");
  } catch (const CommError& e) {
    CHECK(e.message().find("nobody sets this") != std::string::npos);
    CHECK(e.message().find("127.0.0.1:") != std::string::npos);
  }
  CHECK_THROWS_AS(s.set("a", "b"), CommError);  // the connection can no longer be used
}

TEST_CASE("a server that ends, a port in use, and an address without a server are errors") {
  auto server = std::make_unique<StoreServer>(StoreAddress{"127.0.0.1", 0, Token::random()});
  const StoreAddress address = server->address();
  CHECK_THROWS_AS(StoreServer(address), UserError);
  Store s(address, 10s);
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    server.reset();
  });
  const auto start = Clock::now();
  CHECK_THROWS_AS(s.get("never"), CommError);
  CHECK(Clock::now() - start < 5s);
  killer.join();
  CHECK_THROWS_AS(Store(address, 200ms), CommError);
  CHECK_THROWS_AS(Store({"no-such-host.invalid", address.port, {}}, 200ms),
                  Error);  // the resolver's answer decides the kind
}

TEST_CASE("a process knows its own identity, and that of one that ended") {
  CHECK_FALSE(ProcessIdentity::own().ended());
  CHECK(ProcessIdentity::parse(ProcessIdentity::own().text())->started ==
        ProcessIdentity::own().started);
  for (const char* text : {"", "12", "12 ", "x 12", "12 x", "-1 12", "12 13 14", "99999999999 1"})
    CHECK_FALSE(ProcessIdentity::parse(text));
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char c;
    _exit(read(pipes[0], &c, 1) == 1 ? 0 : 1);
  }
  ProcessIdentity other = ProcessIdentity::own();
  other.pid = child;
  CHECK(other.ended());  // the process of that pid began at another time
  CHECK(host_identity() == host_identity());
  REQUIRE(write(pipes[1], "x", 1) == 1);
  waitpid(child, nullptr, 0);
}

namespace {

// Runs each rank of a job in a child process; rank 0 serves the store. The exit code of a child is
// that of `body`, or 9 for a CommError, whose message goes into a pipe.
class Children {
 public:
  template <class Body>
  Children(int ranks, const std::string& backend, const Body& body) {
    REQUIRE(pipe(pipe_) == 0);
    StoreAddress address;
    {
      const StoreServer probe({"127.0.0.1", 0, Token::random()});
      address = probe.address();
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) _exit(run(backend, rank, ranks, address, body));
      pids.push_back(pid);
    }
  }
  ~Children() {
    for (const pid_t p : pids) kill(p, SIGKILL);
    for (const pid_t p : pids) waitpid(p, nullptr, 0);
    close(pipe_[0]);
    close(pipe_[1]);
  }
  int wait(size_t rank) {
    int status = 0;
    waitpid(pids[rank], &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string message() {
    char text[4000];
    const ssize_t n = read(pipe_[0], text, sizeof text);
    return std::string(text, size_t(std::max<ssize_t>(n, 0)));
  }
  std::vector<pid_t> pids;

 private:
  template <class Body>
  int run(const std::string& backend, int rank, int ranks, const StoreAddress& address,
          const Body& body) {
    const IgnoreSigpipe pipes;
    try {
      std::unique_ptr<StoreServer> server;
      if (rank == 0) server = std::make_unique<StoreServer>(address);
      auto store = std::make_shared<Store>(address, 10s);
      World world(rank, ranks,
                  backend == "gloo" ? gloo_transport({address, rank, ranks, 10s})
                                    : shared_memory_transport(store, rank, ranks, 10s));
      return body(world);
    } catch (const CommError& e) {
      const std::string text = e.message();
      return write(pipe_[1], text.data(), text.size()) > 0 ? 9 : 8;
    } catch (...) {
      return 7;
    }
  }
  int pipe_[2];
};

}  // namespace

TEST_CASE("processes reduce") {
  const auto backend = GENERATE(as<std::string>(), "shared_memory", "gloo");
  Children job(3, backend, [](World& world) {
    const auto device = Device::cpu(1);
    Stream& stream = device->stream(device::StreamKind::dp_grad);
    const Tensor t = Tensor::from_host(stream, {700001}, std::vector<float>(700001, 1.0f));
    for (int i = 0; i < 4; ++i) world.world_group().all_reduce(t, Reduce::sum, stream);
    return t.to_host<float>(stream)[700000] == 81 ? 0 : 1;
  });
  for (size_t rank = 0; rank < 3; ++rank) CHECK(job.wait(rank) == 0);
}

TEST_CASE("a killed process is missed at once, and named") {
  const auto backend = GENERATE(as<std::string>(), "shared_memory", "gloo");
  Children job(3, backend, [](World& world) {
    const auto device = Device::cpu(1);
    Stream& stream = device->stream(device::StreamKind::dp_grad);
    const Group g = world.group("dp_cp", {0, 1, 2});
    g.barrier(stream);
    device->synchronize();
    if (world.rank() == 1) raise(SIGKILL);
    g.barrier(stream);
    device->synchronize();
    return 0;
  });
  const auto start = Clock::now();
  CHECK(job.wait(1) == -SIGKILL);
  CHECK(job.wait(0) == 9);
  CHECK(job.wait(2) == 9);
  CHECK(Clock::now() - start < 5s);
  const std::string message = job.message();
  CAPTURE(message);
  CHECK(message.find("barrier 2 of group dp_cp") != std::string::npos);
  CHECK(message.find("rank 1 of the group is gone") != std::string::npos);
}

TEST_CASE("a process killed in the middle of a large message does not leave its peer waiting") {
  Children job(3, "gloo", [](World& world) {
    const auto device = Device::cpu(1);
    Stream& stream = device->stream(device::StreamKind::pp);
    const Group g = world.group("pp", {0, 1, 2});
    g.barrier(stream);
    const Tensor t = Tensor::empty(stream, {64 << 20}, DType::f32);
    device->synchronize();
    if (world.rank() == 1) {
      std::thread([] {
        std::this_thread::sleep_for(20ms);
        raise(SIGKILL);
      }).detach();
      g.send(t, 0, stream);
      g.barrier(stream);  // if it was fast
    } else if (world.rank() == 0) {
      g.receive(t, 1, stream);
      g.barrier(stream);
    } else {
      g.barrier(stream);
    }
    device->synchronize();
    return 0;
  });
  const auto start = Clock::now();
  for (const size_t rank : {0, 2}) CHECK(job.wait(rank) == 9);
  CHECK(Clock::now() - start < 5s);  // half of the timeout
  const std::string message = job.message();
  CAPTURE(message);
  CHECK(message.find("rank 1 of the group is gone") != std::string::npos);
}

TEST_CASE("gloo's ranks end at once when the rank that serves the rendezvous is killed") {
  Children job(3, "gloo", [](World& world) {
    const auto device = Device::cpu(1);
    Stream& stream = device->stream(device::StreamKind::dp_grad);
    const Group g = world.group("dp", {0, 1, 2});
    g.barrier(stream);
    device->synchronize();
    if (world.rank() == 0) raise(SIGKILL);
    g.barrier(stream);
    device->synchronize();
    return 0;
  });
  const auto start = Clock::now();
  CHECK(job.wait(1) == 9);
  CHECK(job.wait(2) == 9);
  CHECK(Clock::now() - start < 5s);
  const std::string message = job.message();
  CAPTURE(message);
  CHECK(message.find("the server of the rendezvous does not answer") != std::string::npos);
}

}  // namespace comm_processes_test
