#include "launch/metrics_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <httplib.h>

#include "base/error.h"

namespace mtrain::launch {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// The open connections. The thread that accepts waits here for room.
class Connections {
 public:
  // Waits until there is room for one more. Closes the oldest connection if that takes too long.
  void enter() {
    std::unique_lock lock(mutex_);
    while (open_ >= MetricsServer::kMaxConnections && !closing_) {
      const bool old =
          !known_.empty() && Clock::now() - known_.front().since >= MetricsServer::kMinTime;
      if (old && !known_.front().cut) {
        known_.front().cut = true;
        shutdown(known_.front().fd, SHUT_RDWR);
      }
      left_.wait_for(lock, 5ms);
    }
    ++open_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --open_;
    left_.notify_one();
  }
  void add(int fd) {
    const std::lock_guard lock(mutex_);
    known_.push_back({.fd = fd, .cut = closing_});
    if (closing_) shutdown(fd, SHUT_RDWR);
  }
  // Closes the descriptor: afterwards its number may belong to another file.
  void close_one(int fd) {
    const std::lock_guard lock(mutex_);
    known_.remove_if([&](const Connection& c) { return c.fd == fd; });
    close(fd);
  }
  void close_all() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for (const Connection& c : known_) shutdown(c.fd, SHUT_RDWR);
    left_.notify_all();
  }

 private:
  struct Connection {
    int fd = -1;
    bool cut = false;
    Clock::time_point since = Clock::now();
  };
  std::mutex mutex_;
  std::condition_variable left_;
  std::list<Connection> known_;  // the oldest first
  int open_ = 0;
  bool closing_ = false;
};

// Threads that serve connections. A connection that has no thread yet waits in the listener's
// queue, not in this process.
class BoundedQueue : public httplib::TaskQueue {
 public:
  explicit BoundedQueue(Connections& connections)
      : connections_(connections), pool_(MetricsServer::kMaxConnections) {}
  void enqueue(std::function<void()> serve) override {
    connections_.enter();
    pool_.enqueue([this, serve = std::move(serve)] {
      serve();
      connections_.leave();
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  Connections& connections_;
  httplib::ThreadPool pool_;
};

// A request that has been read and checked, and its response.
class Exchange : public httplib::Stream {
 public:
  explicit Exchange(std::string request) : in_(std::move(request)) {}
  const std::string& response() const { return out_; }

  bool is_readable() const override { return read_ < in_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    const size_t n = std::min(size, in_.size() - read_);
    std::memcpy(to, in_.data() + read_, n);
    read_ += n;
    return ssize_t(n);
  }
  ssize_t write(const char* from, size_t size) override {
    out_.append(from, size);
    return ssize_t(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  std::string in_, out_;
  size_t read_ = 0;
};

bool await(int fd, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, int(left.count()));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

// Reads up to the empty line that ends the head of a request. Returns nothing if the connection
// ends before, or the time. A head that is too long is returned without its end.
std::optional<std::string> read_head(int fd, Clock::time_point deadline) {
  std::string head;
  char buffer[1024];
  while (head.size() <= MetricsServer::kMaxHeadBytes) {
    if (!await(fd, POLLIN, deadline)) return std::nullopt;
    const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return std::nullopt;
    head.append(buffer, size_t(n));
    if (head.find("\r\n\r\n") != std::string::npos || head.find("\n\n") != std::string::npos) break;
  }
  return head;
}

void send_all(int fd, std::string_view text, Clock::time_point deadline) {
  while (!text.empty() && await(fd, POLLOUT, deadline)) {
    const ssize_t n = send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return;
    if (n > 0) text.remove_prefix(size_t(n));
  }
  // Bytes that were not read would make the system reset the connection before the client has the
  // response.
  shutdown(fd, SHUT_WR);
  char rest[1024];
  for (int i = 0; i < 64 && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; ++i) {
  }
}

std::string refusal(std::string_view status, std::string_view header = "") {
  return fmt::format("HTTP/1.1 {}\r\n{}Content-Length: 0\r\nConnection: close\r\n\r\n", status,
                     header);
}

// What a head asks for: the path of a GET, or the response that refuses it.
struct Request {
  std::string path, refused;
};

Request parse_head(std::string_view head) {
  if (head.size() > MetricsServer::kMaxHeadBytes)
    return {.refused = refusal("431 Request Header Fields Too Large")};
  const std::string_view line = head.substr(0, head.find_first_of("\r\n"));
  const size_t space = line.find(' '), end = line.rfind(' ');
  if (space == std::string_view::npos || end == space ||
      !line.substr(end + 1).starts_with("HTTP/1."))
    return {.refused = refusal("400 Bad Request")};
  if (line.substr(0, space) != "GET")
    return {.refused = refusal("405 Method Not Allowed", "Allow: GET\r\n")};
  std::string_view path = line.substr(space + 1, end - space - 1);
  path = path.substr(0, path.find('?'));
  const bool plain = std::ranges::all_of(
      path, [](char c) { return c == '/' || c == '-' || c == '_' || std::isalnum(uint8_t(c)); });
  if (!plain || !path.starts_with('/')) return {.refused = refusal("404 Not Found")};
  return {.path = std::string(path)};
}

}  // namespace

// The library accepts connections and writes responses. It bounds neither the bytes of all headers
// nor the time of a request, so a connection's head is read here; the library sees only the path.
class MetricsServer::Http : public httplib::Server {
 public:
  Http(const std::string& host, uint16_t port, Pages pages) {
    // Without SO_REUSEPORT, by which the library would share a port with another launcher.
    set_socket_options([](socket_t fd) {
      const int on = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    new_task_queue = [this] { return new BoundedQueue(connections_); };
    Get("/metrics", [page = pages.metrics](const httplib::Request&, httplib::Response& response) {
      response.set_content(page(), "text/plain; version=0.0.4; charset=utf-8");
    });
    Get("/healthz", [page = pages.health](const httplib::Request&, httplib::Response& response) {
      const Health health = page();
      if (!health.well) response.status = 503;
      response.set_content(health.text + "\n", "text/plain; charset=utf-8");
    });
    errno = 0;
    port_ = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
    if (port_ < 0)
      throw UserError(fmt::format("cannot listen at {}:{}: {}", host, port,
                                  errno ? std::strerror(errno) : "this host has no such address"),
                      "choose another port; 0 means any free one");
    thread_ = std::thread([this] {
      listen_after_bind();
      over_ = true;
    });
    // The library's stop() would have no effect before this.
    while (!is_running() && !over_) std::this_thread::sleep_for(1ms);
  }
  ~Http() override {
    connections_.close_all();
    stop();
    thread_.join();
  }
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;
  int port() const { return port_; }

 private:
  bool process_and_close_socket(socket_t fd) override {
    const auto deadline = Clock::now() + kMaxTime;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    connections_.add(fd);
    if (const auto head = read_head(fd, deadline)) {
      const Request request = parse_head(*head);
      send_all(fd, request.refused.empty() ? answer(request.path) : request.refused, deadline);
    }
    connections_.close_one(fd);
    return true;
  }

  std::string answer(const std::string& path) {
    Exchange exchange(fmt::format("GET {} HTTP/1.1\r\nConnection: close\r\n\r\n", path));
    bool closed = false;
    process_request(exchange, /*close_connection=*/true, closed, nullptr);
    return exchange.response();
  }

  Connections connections_;
  int port_ = -1;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

MetricsServer::MetricsServer(const std::string& host, uint16_t port, Pages pages)
    : http_(std::make_unique<Http>(host, port, std::move(pages))), port_(uint16_t(http_->port())) {}

MetricsServer::~MetricsServer() = default;

}  // namespace mtrain::launch
