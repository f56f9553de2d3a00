#include "comm/store.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mtrain::comm {

namespace {

using Clock = std::chrono::steady_clock;

// Both sides first send this text, so that neither takes another program for its peer.
constexpr std::string_view kGreeting = "mtrain store 2\n";
constexpr uint32_t kMaxBytes = 16 << 20;  // the largest key or value

// A message holds an operation, then length and bytes of a key and of a value. A reply holds length
// and bytes; its first byte says whether the rest is an answer or the reason why there is none.
constexpr char kSet = 'S', kGet = 'G', kAdd = 'A', kFail = 'F';
constexpr char kAnswer = '+', kNone = '-';

void append(std::string& out, const std::string& text) {
  const auto size = htonl(uint32_t(text.size()));
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += text;
}

// Reads a length-prefixed text at `at`, which moves behind it; returns false while it is
// incomplete.
bool take(const std::string& in, size_t& at, std::string& text) {
  uint32_t size;
  if (in.size() < at + sizeof size) return false;
  std::memcpy(&size, in.data() + at, sizeof size);
  size = ntohl(size);
  if (size > kMaxBytes) throw CommError(fmt::format("a message of {} bytes", size));
  if (in.size() < at + sizeof size + size) return false;
  text.assign(in, at + sizeof size, size);
  at += sizeof size + size;
  return true;
}

std::string reason() { return std::strerror(errno); }

}  // namespace

// One thread serves all connections.
class StoreServer::Loop {
 public:
  Loop(int listener, int stop) : listener_(listener), stop_(stop), thread_([this] { run(); }) {}
  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(stop_, &one, sizeof one);
    thread_.join();
    for (const auto& c : clients_) close(c.fd);
    close(listener_);
    close(stop_);
  }

 private:
  struct Client {
    int fd;
    std::string in, out;
    bool greeted = false;
    std::string waits_for;  // key of an unanswered get
    bool waits = false;
  };

  void run() {
    for (;;) {
      std::vector<pollfd> fds{{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
      for (const auto& c : clients_)
        fds.push_back({c.fd, short(POLLIN | (c.out.empty() ? 0 : POLLOUT)), 0});
      if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
      if (fds[0].revents) return;
      for (size_t i = 2; i < fds.size(); ++i)
        if (fds[i].revents && !serve(clients_[i - 2])) {
          close(clients_[i - 2].fd);
          clients_[i - 2].fd = -1;
        }
      std::erase_if(clients_, [](const Client& c) { return c.fd < 0; });
      if (fds[1].revents) {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) clients_.push_back({.fd = fd, .in = {}, .out = std::string(kGreeting)});
      }
    }
  }

  // Returns false when the connection has ended.
  bool serve(Client& c) {
    char buffer[65536];
    for (;;) {
      const ssize_t n = recv(c.fd, buffer, sizeof buffer, 0);
      if (n > 0) {
        c.in.append(buffer, size_t(n));
        continue;
      }
      if (n == 0 || (errno != EAGAIN && errno != EINTR)) return false;
      break;
    }
    try {
      if (!answer(c)) return false;
    } catch (const CommError&) {
      return false;
    }
    return flush(c);
  }

  static bool flush(Client& c) {
    while (!c.out.empty()) {
      const ssize_t n = send(c.fd, c.out.data(), c.out.size(), MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      c.out.erase(0, size_t(n));
    }
    return true;
  }

  bool answer(Client& c) {
    if (!c.greeted) {
      if (c.in.size() < kGreeting.size()) return true;
      if (c.in.compare(0, kGreeting.size(), kGreeting) != 0) return false;
      c.in.erase(0, kGreeting.size());
      c.greeted = true;
    }
    while (!c.in.empty()) {
      size_t at = 1;
      std::string key, value;
      if (!take(c.in, at, key) || !take(c.in, at, value)) return true;
      const char operation = c.in[0];
      c.in.erase(0, at);
      if (operation == kSet) {
        values_[key] = value;
        append(c.out, {kAnswer});
        wake(key);
      } else if (operation == kAdd) {
        std::string& number = values_[key];
        number = std::to_string(std::atoll(number.c_str()) + std::atoll(value.c_str()));
        append(c.out, kAnswer + number);
        wake(key);
      } else if (operation == kGet) {
        if (const auto found = values_.find(key); found != values_.end())
          append(c.out, kAnswer + found->second);
        else if (!failure_.empty())
          append(c.out, kNone + failure_);
        else
          c.waits = true, c.waits_for = key;
      } else if (operation == kFail) {
        if (failure_.empty() && !value.empty()) end_waits(value);
        append(c.out, kAnswer + failure_);
      } else {
        return false;
      }
    }
    return true;
  }

  void wake(const std::string& key) {
    for (Client& c : clients_) {
      if (!c.waits || c.waits_for != key) continue;
      c.waits = false;
      append(c.out, kAnswer + values_[key]);
      flush(c);  // run() sends the rest, if any, when the socket has room
    }
  }

  void end_waits(const std::string& reason) {
    failure_ = reason;
    for (Client& c : clients_) {
      if (!std::exchange(c.waits, false)) continue;
      append(c.out, kNone + failure_);
      flush(c);
    }
  }

  const int listener_, stop_;
  std::vector<Client> clients_;
  std::map<std::string, std::string> values_;
  std::string failure_;  // why the job has failed; "" while it lives
  std::thread thread_;   // last: it uses all of the above
};

StoreServer::StoreServer(uint16_t port) {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool six = fd >= 0;
  const int listener = six ? fd : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) throw RunError("no socket for the rendezvous: " + reason());
  const int on = 1, off = 0;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  socklen_t length;
  if (six) {
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    auto& a = reinterpret_cast<sockaddr_in6&>(address);
    a.sin6_family = AF_INET6, a.sin6_addr = in6addr_any, a.sin6_port = htons(port);
    length = sizeof a;
  } else {
    auto& a = reinterpret_cast<sockaddr_in&>(address);
    a.sin_family = AF_INET, a.sin_addr.s_addr = INADDR_ANY, a.sin_port = htons(port);
    length = sizeof a;
  }
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) < 0 ||
      listen(listener, 1024) < 0) {
    const std::string why = reason();
    close(listener);
    throw UserError(fmt::format("cannot serve the rendezvous at port {}: {}", port, why),
                    "another job may use it: choose another port with --master_port (MASTER_PORT)");
  }
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(six ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                    : reinterpret_cast<sockaddr_in&>(address).sin_port);
  loop_ = std::make_unique<Loop>(listener, eventfd(0, EFD_CLOEXEC));
}

StoreServer::~StoreServer() = default;

namespace {

// Returns a connected socket, or -1.
int try_connect(const std::string& host, uint16_t port, Clock::time_point deadline) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int unknown = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (unknown == EAI_NONAME)  // waiting would not help
    throw UserError(fmt::format("no host is called {}: {}", host, gai_strerror(unknown)),
                    "MASTER_ADDR (--master_addr) is the host of rank 0");
  if (unknown != 0) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  int fd = -1;
  for (const addrinfo* a = found; a && fd < 0; a = a->ai_next) {
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    int result = connect(fd, a->ai_addr, a->ai_addrlen);
    if (result < 0 && errno == EINPROGRESS) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd p{fd, POLLOUT, 0};
      int error = ETIMEDOUT;
      socklen_t size = sizeof error;
      if (poll(&p, 1, std::max(1, int(left.count()))) > 0)
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      result = error ? -1 : 0;
      errno = error;
    }
    if (result < 0) {
      const int why = errno;
      close(fd);
      fd = -1;
      errno = why;
    }
  }
  freeaddrinfo(found);
  return fd;
}

void send_all(int fd, std::string_view data, Clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t n = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (n > 0) {
      data.remove_prefix(size_t(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR) && Clock::now() < deadline) {
      pollfd p{fd, POLLOUT, 0};
      poll(&p, 1, 100);
    } else {
      throw CommError(reason());
    }
  }
}

// Waits for at least one more byte.
void receive(int fd, std::string& in, Clock::time_point deadline) {
  for (;;) {
    char buffer[65536];
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n > 0) {
      in.append(buffer, size_t(n));
      return;
    }
    if (n == 0) throw CommError("the server has closed the connection");
    if (errno != EAGAIN && errno != EINTR) throw CommError(reason());
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) throw CommError("no answer in time");
    pollfd p{fd, POLLIN, 0};
    poll(&p, 1, int(std::min<int64_t>(left, 1000)));
  }
}

}  // namespace

Store::Store(const std::string& host, uint16_t port, std::chrono::milliseconds timeout)
    : where_(fmt::format("{}:{}", host, port)), timeout_(timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    fd_ = try_connect(host, port, deadline);
    std::string why = fd_ < 0 ? reason() : "";
    if (fd_ >= 0) {
      const int on = 1;
      setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      try {
        send_all(fd_, kGreeting, deadline);
        std::string greeting;
        // Another program may never answer.
        const auto patience = std::min(deadline, Clock::now() + std::chrono::seconds(5));
        while (greeting.size() < kGreeting.size()) receive(fd_, greeting, patience);
        if (greeting == kGreeting) return;
        why = "another program answers there";
      } catch (const CommError& e) {
        why = e.message();
      }
      close(fd_);
      fd_ = -1;
    }
    if (Clock::now() + std::chrono::milliseconds(50) > deadline)
      throw CommError(fmt::format("no rendezvous at {} after {:.3g} s: {}", where_,
                                  std::chrono::duration<double>(timeout).count(), why),
                      "MASTER_ADDR and MASTER_PORT must name the host of rank 0, and rank 0 must "
                      "have started");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Store::~Store() {
  if (fd_ >= 0) close(fd_);
}

namespace {

// Returns the address that `name` (getsockname or getpeername) gives.
std::string numeric_address(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXHOST];
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &length) < 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST) != 0)
    throw CommError("the connection to the rendezvous has no address: " + reason());
  return text;
}

}  // namespace

std::string Store::local_address() const { return numeric_address(fd_, getsockname); }
std::string Store::server_address() const { return numeric_address(fd_, getpeername); }

std::string Store::call(char operation, const std::string& key, const std::string& value,
                        std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  const auto deadline = Clock::now() + timeout;
  if (fd_ < 0) throw CommError(fmt::format("the connection to {} is closed", where_));
  std::string reply;
  try {
    std::string message(1, operation), in;
    append(message, key);
    append(message, value);
    send_all(fd_, message, deadline);
    for (size_t at = 0; !take(in, at, reply);) receive(fd_, in, deadline);
    if (reply.empty()) throw CommError("an answer without bytes");
  } catch (const CommError& e) {
    // A late answer would be taken for the answer to the next call.
    close(fd_);
    fd_ = -1;
    throw CommError(fmt::format("rendezvous at {}, waiting for `{}`: {}", where_, key, e.message()),
                    "a rank has not started, or has ended");
  }
  if (reply[0] == kNone) throw CommError(reply.substr(1));
  return reply.substr(1);
}

void Store::set(const std::string& key, const std::string& value) {
  call(kSet, key, value, timeout_);
}
void Store::fail(const std::string& reason) { call(kFail, "", reason, timeout_); }
std::string Store::failure() { return call(kFail, "", "", timeout_); }
std::string Store::get(const std::string& key) { return call(kGet, key, "", timeout_); }
std::string Store::get(const std::string& key, std::chrono::milliseconds timeout) {
  return call(kGet, key, "", timeout);
}
int64_t Store::add(const std::string& key, int64_t delta) {
  return std::atoll(call(kAdd, key, std::to_string(delta), timeout_).c_str());
}

}  // namespace mtrain::comm
