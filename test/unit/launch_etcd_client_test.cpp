// Tests the client of etcd with a stand-in that answers as etcd's gateway does.
#include "launch/etcd_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "launch/etcd_election.h"

namespace launch_etcd_client_test {

using namespace mtrain;
using namespace mtrain::launch;
using Catch::Matchers::Contains;

// Answers every request with this status and body, and keeps the last request. Connections end
// after so many answers.
class StandIn {
 public:
  StandIn() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(bind(socket_, reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(listen(socket_, 8) == 0);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~StandIn() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
  }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  void answer(int status, const std::string& body) {
    const std::lock_guard lock(mutex_);
    status_ = status, body_ = body;
  }
  std::string request() {
    const std::lock_guard lock(mutex_);
    return request_;
  }
  void keep(int answers) { answers_ = answers; }
  int connections() const { return connections_; }
  uint16_t port() const { return port_; }
  EtcdOptions options(const std::string& at = "127.0.0.1") const {
    EtcdOptions o;
    o.servers = {{at, port_}};
    return o;
  }

 private:
  static bool is_whole(const std::string& text) {
    const size_t end = text.find("\r\n\r\n"), length = text.find("Content-Length: ");
    return end != std::string::npos && length != std::string::npos &&
           text.size() >= end + 4 + size_t(std::atoi(text.c_str() + length + 16));
  }
  void serve() {
    for (int fd; (fd = accept(socket_, nullptr, nullptr)) >= 0; close(fd)) {
      ++connections_;
      for (int left = answers_; left > 0 && answer_one(fd); --left) {
      }
    }
  }
  // Returns false if the client has left.
  bool answer_one(int fd) {
    std::string text;
    char bytes[4096];
    for (ssize_t n; !is_whole(text); text.append(bytes, size_t(n)))
      if ((n = recv(fd, bytes, sizeof bytes, 0)) <= 0) return false;
    const std::lock_guard lock(mutex_);
    request_ = text;
    const std::string reply =
        fmt::format("HTTP/1.1 {} x\r\nContent-Length: {}\r\n{}\r\n{}", status_, body_.size(),
                    answers_ == 1 ? "Connection: close\r\n" : "", body_);
    return send(fd, reply.data(), reply.size(), MSG_NOSIGNAL) >= 0;
  }

  const int socket_;
  uint16_t port_ = 0;
  std::atomic<int> answers_{1}, connections_{0};
  std::mutex mutex_;
  int status_ = 200;
  std::string body_ = "{}", request_;
  std::thread thread_;
};

TEST_CASE("etcd is reached at an IPv6 address with letters") {
  StandIn etcd;
  EtcdClient client(etcd.options("::ffff:127.0.0.1"));
  CHECK_FALSE(client.get("key"));
  CHECK_THAT(etcd.request(), Contains(fmt::format("Host: [::ffff:127.0.0.1]:{}\r\n", etcd.port())));
}

TEST_CASE("the reason in an error of etcd is read from all its versions") {
  StandIn etcd;
  EtcdClient client(etcd.options());
  for (const char* key : {"message", "error"}) {
    etcd.answer(400, fmt::format("{{\"code\": 3, \"{}\": \"user name is empty\"}}", key));
    CHECK_THROWS_WITH(client.get("key"), Contains("needs a user: user name is empty"));
  }
}

TEST_CASE("requests share a connection, and one that the server has closed is made again") {
  StandIn etcd;
  etcd.keep(3);
  EtcdClient client(etcd.options());
  for (int i = 0; i < 3; ++i) CHECK_FALSE(client.get("key"));
  CHECK(etcd.connections() == 1);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(client.get("key"));
  CHECK(etcd.connections() == 3);
}

TEST_CASE("a start that etcd refuses says why") {
  StandIn etcd;
  EtcdElection election(etcd.options(), "job", "me");
  CHECK_THAT(election.fault(), Contains("does not answer"));
  etcd.answer(200, R"({"ID": "7", "TTL": "10", "succeeded": true, "result": {"TTL": "10"},
                  "kvs": [{"create_revision": "5", "lease": "7", "value": ""}]})");
  REQUIRE(election.campaign({.id = "me", .host = "h", .address = {}, .job_token = {}}));
  etcd.answer(403, R"({"code": 7, "message": "permission denied"})");
  CHECK_FALSE(election.settle({}));
  CHECK_THAT(election.fault(), Contains("may not use the job's keys"));
}

}  // namespace launch_etcd_client_test
