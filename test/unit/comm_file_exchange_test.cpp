// Tests the exchange of files between processes: what arrives is complete, and a stranger gets
// nothing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "comm/file_exchange.h"
#include "test/support/temporary_folder.h"

namespace comm_file_exchange_test {

using namespace mtrain;
using namespace mtrain::comm;
using namespace std::chrono_literals;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr const char* kHere = "127.0.0.1";

struct Server {
  TemporaryFolder root;
  ProvenSocket::Options socket;
  FileServer server;
  explicit Server(std::function<void(int64_t)> admit = {})
      : Server({.admit = std::move(admit)}, 500ms) {}
  Server(FileServer::Options options, std::chrono::milliseconds proof)
      : socket{.token = Token::random(), .patience = 2s, .proof = proof},
        server(completed(std::move(options))) {}
  FileClient client(std::chrono::milliseconds retry = {}) const {
    return {kHere, server.port(), socket, retry};
  }

 private:
  FileServer::Options completed(FileServer::Options options) const {
    options.address = kHere;
    options.socket = socket;
    options.root = root.path;
    return options;
  }
};

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = char(i * 131 + i / 4096);
  return text;
}

fs::path make_folder(const fs::path& root, const std::string& name,
                     const std::map<std::string, std::string>& files) {
  fs::create_directories(root / name);
  for (const auto& [file, content] : files)
    std::ofstream(root / name / file, std::ios::binary) << content;
  return root / name;
}

int connect_to(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  timeval most{.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  return fd;
}

// Returns everything that the server sends until it closes the connection.
std::string answer_to(uint16_t port, const std::string& bytes) {
  const int fd = connect_to(port);
  [[maybe_unused]] const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, size_t(n));
  close(fd);
  return answer;
}

bool has_no_files(const fs::path& folder) {
  return fs::directory_iterator(folder) == fs::directory_iterator();
}

bool within(std::chrono::milliseconds longest, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

}  // namespace

TEST_CASE("a folder that is sent arrives with all of its files, and can be fetched again") {
  const Server s;
  const TemporaryFolder from;
  const std::map<std::string, std::string> files{
      {"part", "x"}, {"empty", ""}, {"weights-00000.safetensors", pattern((5 << 20) + 17)}};
  const fs::path sent = make_folder(from.path, "step-1.a", files);
  RateLimit unlimited(0);
  FileClient client = s.client();
  client.send_folder(sent, unlimited);
  for (const auto& [name, content] : files) {
    CHECK(read_file(s.root.path / "step-1.a" / name) == content);
    client.fetch("step-1.a", name, from.path / name);
    CHECK(read_file(from.path / name) == content);
  }
  SECTION("a folder that the server has stays as it is") {
    make_folder(from.path, "step-1.a", {{"part", "y"}});
    client.send_folder(sent, unlimited);
    CHECK(read_file(s.root.path / "step-1.a" / "part") == "x");
  }
  SECTION("a file that is absent is an error, and the connection stays usable") {
    CHECK_THROWS_WITH(client.fetch("step-1.a", "none", from.path / "none"), Contains("none"));
    client.fetch("step-1.a", "part", from.path / "again");
    CHECK(read_file(from.path / "again") == "x");
  }
}

TEST_CASE("a server that refuses a folder sends its reason") {
  const Server s([](int64_t bytes) { throw RunError(fmt::format("no room for {}", bytes)); });
  const TemporaryFolder from;
  RateLimit unlimited(0);
  FileClient client = s.client();
  const fs::path folder = make_folder(from.path, "a", {{"x", "1234"}});
  CHECK_THROWS_WITH(client.send_folder(folder, unlimited), Contains("no room for 4"));
  CHECK(has_no_files(s.root.path));
}

TEST_CASE("a stranger without the token reads and writes nothing") {
  const Server s;
  const TemporaryFolder from;
  make_folder(s.root.path, "a", {{"secret", "the weights of the model"}});
  ProvenSocket::Options other = s.socket;
  other.token = Token::random();
  CHECK_THROWS_AS(FileClient(kHere, s.server.port(), other), CommError);
  // The server's proof covers the nonce of this connection: what it sends never has the files.
  const std::string greeting = "mtrain peer 1\n";
  for (const std::string& bytes :
       {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), std::string("mtrain store 3\n"),
        greeting + std::string(32, 'n') + std::string(32, 'p') + "G", std::string(1 << 16, 'x')}) {
    const std::string answer = answer_to(s.server.port(), bytes);
    CHECK(answer.find("the weights") == std::string::npos);
    CHECK(answer.size() <= greeting.size() + 64);
  }
  FileClient client = s.client();  // the server is still there
  client.fetch("a", "secret", from.path / "copy");
  CHECK(read_file(from.path / "copy") == "the weights of the model");
}

TEST_CASE("strangers that are silent keep no peer waiting") {
  // They would be dropped after the time for the proof, which is longer than this test.
  const Server s({.most_strangers = 16}, 60s);
  const TemporaryFolder to;
  make_folder(s.root.path, "a", {{"x", "1234"}});
  FileClient early = s.client();
  std::vector<int> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_to(s.server.port()));
  const auto began = std::chrono::steady_clock::now();
  FileClient late = s.client(5s);
  late.fetch("a", "x", to.path / "late");
  early.fetch("a", "x", to.path / "early");  // it is proven, so no stranger takes its place
  CHECK(std::chrono::steady_clock::now() - began < 2s);
  // The oldest ones were closed; at most 16 are left.
  int left = 0;
  for (const int fd : silent) {
    char c;
    if (::recv(fd, &c, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) ++left;
  }
  CHECK(left <= 16);
  for (const int fd : silent) close(fd);
}

TEST_CASE("200 peers are served by a server that takes a few at once, among strangers") {
  constexpr int kPeers = 200;
  const Server s({.most_peers = 8, .most_strangers = 8}, 60s);
  const TemporaryFolder work;
  const std::string content = pattern(100'001);
  make_folder(s.root.path, "a", {{"x", content}});
  std::atomic<bool> done = false;
  std::thread strangers([&] {  // they come again as soon as they are dropped
    std::vector<int> open;
    while (!done) {
      open.push_back(connect_to(s.server.port()));
      if (open.size() > 12) {
        close(open.front());
        open.erase(open.begin());
      }
      std::this_thread::sleep_for(1ms);
    }
    for (const int fd : open) close(fd);
  });
  std::atomic<int> served = 0;
  std::vector<std::string> errors(kPeers);
  std::vector<std::thread> peers;
  for (int i = 0; i < kPeers; ++i)
    peers.emplace_back([&, i] {
      try {
        const std::string name = fmt::format("p{}", i);
        const fs::path own = make_folder(work.path, name, {{"y", name}});
        RateLimit unlimited(0);
        FileClient client = s.client(60s);
        client.fetch("a", "x", own / "x");
        client.send_folder(own, unlimited);
        if (read_file(own / "x") == content) ++served;
      } catch (const std::exception& e) {
        errors[size_t(i)] = e.what();
      }
    });
  for (std::thread& t : peers) t.join();
  done = true;
  strangers.join();
  for (const std::string& e : errors) CHECK(e == "");
  CHECK(served == kPeers);
  for (int i = 0; i < kPeers; ++i) {
    const std::string name = fmt::format("p{}", i);
    CHECK(read_file(s.root.path / name / "y") == name);
    CHECK(fs::file_size(s.root.path / name / "x") == content.size());
  }
}

TEST_CASE("a client tries again only while somebody listens, and within its time") {
  uint16_t gone = 0;
  {
    const Server s;
    gone = s.server.port();
  }
  ProvenSocket::Options socket{.token = Token::random(), .patience = 2s, .proof = 500ms};
  auto began = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(FileClient(kHere, gone, socket, 30s), ConnectionRefused);
  CHECK(std::chrono::steady_clock::now() - began < 5s);

  const Server full({.most_peers = 1}, 500ms);
  const TemporaryFolder to;
  make_folder(full.root.path, "a", {{"x", "1234"}});
  FileClient first = full.client();
  first.fetch("a", "x", to.path / "1");
  FileClient second = full.client();
  CHECK_THROWS_AS(second.fetch("a", "x", to.path / "2"), CommError);
  CHECK_FALSE(fs::exists(to.path / "2"));
  began = std::chrono::steady_clock::now();
  FileClient third = full.client(300ms);
  CHECK_THROWS_AS(third.fetch("a", "x", to.path / "3"), CommError);
  CHECK(std::chrono::steady_clock::now() - began < 1500ms);
  first.fetch("a", "x", to.path / "4");
}

TEST_CASE("names that leave the folder are refused") {
  CHECK(is_exchanged_name("step-00000037.0123456789abcdef.rank-00001"));
  for (const char* name : {"", ".", "..", "../a", "a/b", "/etc/passwd", ".in-a", "a b", "a\n"})
    CHECK_FALSE(is_exchanged_name(name));
  const Server s;
  const TemporaryFolder to;
  CHECK_THROWS_AS(s.client().fetch("..", "passwd", to.path / "x"), Error);
  CHECK_THROWS_AS(s.client().fetch("a", "../../etc/passwd", to.path / "y"), Error);
}

TEST_CASE("a connection that is torn leaves nothing behind") {
  const Server s;
  {
    ProvenSocket peer(kHere, s.server.port(), s.socket);
    peer.send_letter('P');
    peer.send_text("a");
    peer.send_number(1);
    peer.send_text("x");
    peer.send_number(1 << 20);
    CHECK(peer.receive_letter() == '+');
    const std::string half = pattern(1 << 19);
    peer.send(half.data(), half.size());
    CHECK(within(5s, [&] { return !has_no_files(s.root.path); }));
  }
  CHECK(within(5s, [&] { return has_no_files(s.root.path); }));
}

TEST_CASE("a transfer that is given up ends at once") {
  const Server s;
  const TemporaryFolder from;
  const fs::path folder = make_folder(from.path, "a", {{"x", pattern(8 << 20)}});
  std::atomic<bool> stop = false;
  ProvenSocket::Options options = s.socket;
  options.stop = &stop;
  FileClient client(kHere, s.server.port(), options);
  RateLimit slow(1 << 20);
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    stop = true;
  });
  struct GivenUp {};
  const auto began = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(client.send_folder(folder, slow,
                                     [&] {
                                       if (stop) throw GivenUp();
                                     }),
                  GivenUp);
  CHECK(std::chrono::steady_clock::now() - began < 2s);
  later.join();
}

TEST_CASE("the rate limit spaces what is sent, and has no debt after a pause") {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin{};
  RateLimit limit(1000);
  CHECK(limit.after(500, begin + 1s) == 500ms);
  CHECK(limit.after(500, begin + 1s) == 1000ms);
  CHECK(limit.after(500, begin + 10s) == 500ms);
  RateLimit none(0);
  CHECK(none.after(1 << 30, begin) == 0ms);
}

TEST_CASE("several peers send at the same time") {
  const Server s;
  const TemporaryFolder from;
  std::vector<std::thread> peers;
  for (int i = 0; i < 4; ++i)
    peers.emplace_back([&, i] {
      const fs::path folder = make_folder(from.path, fmt::format("p{}", i),
                                          {{"x", pattern(size_t(1 << 20) + size_t(i))}});
      RateLimit unlimited(0);
      s.client().send_folder(folder, unlimited);
    });
  for (std::thread& t : peers) t.join();
  for (int i = 0; i < 4; ++i)
    CHECK(fs::file_size(s.root.path / fmt::format("p{}", i) / "x") == size_t(1 << 20) + size_t(i));
}

}  // namespace comm_file_exchange_test
