#include "store/store.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <thread>

#include "store/store_protocol.h"

namespace mtrain::store {

namespace {

using Clock = std::chrono::steady_clock;

std::string reason() { return std::strerror(errno); }

// Returns a connected socket, or -1. The error is ECONNREFUSED only if all addresses refuse.
int try_connect(const std::string& host, uint16_t port, Clock::time_point deadline) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int unknown = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (unknown == EAI_NONAME)  // waiting would not help
    throw UserError(
        fmt::format("no host is called {}: {}", host, gai_strerror(unknown)),
        "MASTER_ADDR (--master_addr) is the host of rank 0, which has --node_rank 0, by a "
        "name that every host knows");
  if (unknown != 0) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  int fd = -1, why = ECONNREFUSED;
  for (const addrinfo* a = found; a && fd < 0; a = a->ai_next) {
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      why = errno;
      continue;
    }
    int result = connect(fd, a->ai_addr, a->ai_addrlen);
    if (result < 0 && errno == EINPROGRESS) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd p{fd, POLLOUT, 0};
      int error = ETIMEDOUT;
      socklen_t size = sizeof error;
      if (poll(&p, 1, int(std::clamp<int64_t>(left.count(), 1, 60000))) > 0)
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      result = error ? -1 : 0;
      errno = error;
    }
    if (result < 0) {
      if (errno != ECONNREFUSED) why = errno;
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  errno = why;
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

// Waits for at least one more byte, and takes no more than `most`.
void receive(int fd, std::string& in, size_t most, Clock::time_point deadline) {
  for (;;) {
    char buffer[65536];
    const ssize_t n = recv(fd, buffer, std::min(most, sizeof buffer), 0);
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

Store::Store(const StoreAddress& at, std::chrono::milliseconds to_connect,
             std::chrono::milliseconds timeout)
    : where_(fmt::format("{}:{}", at.host, at.port)), timeout_(timeout) {
  const auto deadline = Clock::now() + to_connect;
  for (bool is_refused = true;;) {
    fd_ = try_connect(at.host, at.port, deadline);
    is_refused = is_refused && fd_ < 0 && errno == ECONNREFUSED;
    std::string why = fd_ < 0 ? reason() : "";
    auto pause = std::chrono::milliseconds(5);
    if (fd_ >= 0) {
      const int on = 1;
      setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      try {
        // Another program may never answer.
        prove_each_other(at.token, std::min(deadline, Clock::now() + std::chrono::seconds(5)));
        enter(at, deadline);
        return;
      } catch (const OldRoundError&) {
        close(fd_);
        throw;
      } catch (const CommError& e) {
        why = e.message();
        // The server closes old connections that have not proved anything; this may have been one.
        pause = std::chrono::milliseconds(1);
      } catch (const OtherJobError&) {
        close(fd_);
        throw;
      }
      close(fd_);
      fd_ = -1;
    }
    if (Clock::now() + std::chrono::milliseconds(50) > deadline) {
      why = fmt::format("no rendezvous at {} after {:.3g} s: {}", where_,
                        std::chrono::duration<double>(to_connect).count(), why);
      const char* const hint =
          "MASTER_ADDR and MASTER_PORT must name the host of rank 0, and rank 0 must have started";
      if (is_refused) throw NobodyListensError(why, hint);
      throw CommError(why, hint);
    }
    std::this_thread::sleep_for(pause);
  }
}

// The server proves first: this rank reveals nothing to a program that poses as the server.
void Store::prove_each_other(const Token& token, Clock::time_point deadline) {
  const Nonce own = make_nonce();
  std::string hello(kStoreGreeting);
  hello.append(bytes_of(own));
  send_all(fd_, hello, deadline);
  std::string in;
  const auto receive_until = [&](size_t size) {
    while (in.size() < size) receive(fd_, in, size - in.size(), deadline);
  };
  receive_until(kStoreGreeting.size());
  if (in != kStoreGreeting) throw CommError("another program answers there");
  receive_until(kHelloBytes + kProofBytes);
  Nonce server;
  std::memcpy(server.data(), in.data() + kStoreGreeting.size(), server.size());
  if (!same_proof(make_proof(token, StoreEnd::server, own, server),
                  std::string_view(in).substr(kHelloBytes)))
    throw OtherJobError(fmt::format("the server at {} does not know this job's token", where_),
                        "another job uses this port: choose another one with --master_port "
                        "(MASTER_PORT)");
  const Proof proof = make_proof(token, StoreEnd::client, own, server);
  send_all(fd_, bytes_of(proof), deadline);
  in.clear();
  receive_until(1);
  if (in[0] != kWelcome) throw CommError("another program answers there");
}

Store::~Store() { close_socket(); }

void Store::close_socket() {
  const std::lock_guard lock(socket_mutex_);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void Store::disconnect() {
  const std::lock_guard lock(socket_mutex_);
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
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

void Store::enter(const StoreAddress& at, Clock::time_point deadline) {
  try {
    exchange(kEnter, at.job, std::to_string(at.round), deadline);
  } catch (const CommError&) {
    if (Clock::now() + std::chrono::milliseconds(2) < deadline) throw;
    throw CommError(fmt::format("start {} of the ranks has not begun there", at.round));
  }
}

// Sends a request and returns its answer. Throws CommError, after which the connection cannot be
// used, or returns a refusal as another kind of reply.
std::string Store::exchange(char operation, const std::string& key, const std::string& value,
                            Clock::time_point deadline) {
  std::string in, reply;
  send_all(fd_, request_text(operation, key, value), deadline);
  for (size_t at = 0;;) {
    if (const auto text = take_text(in, at, kMaxValueBytes + 1)) {
      reply = *text;
      break;
    }
    receive(fd_, in, kMaxValueBytes, deadline);
  }
  if (reply.empty()) throw CommError("an empty answer");
  const std::string reason = reply.substr(1, kMaxReasonBytes);
  if (reply[0] == kOldRound) throw OldRoundError(reason, "end this process if it still runs");
  if (reply[0] == kOtherJob)
    throw OtherJobError(reason,
                        "give all hosts of a job the same --rdzv_id, and each job its own port");
  return reply;
}

std::string Store::call(char operation, const std::string& key, const std::string& value,
                        std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  const auto deadline = Clock::now() + timeout;
  if (fd_ < 0) throw CommError(fmt::format("the connection to {} is closed", where_));
  MT_CHECK(key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes,
           "a key of {} bytes, a value of {}", key.size(), value.size());
  std::string reply;
  try {
    reply = exchange(operation, key, value, deadline);
  } catch (const OldRoundError&) {
    throw;
  } catch (const CommError& e) {
    // A late answer would be mistaken for the answer to the next call.
    close_socket();
    throw CommError(fmt::format("rendezvous at {}, waiting for `{}`: {}", where_, key, e.message()),
                    "a rank has not started, or has ended");
  }
  if (reply[0] == kNone) throw CommError(reply.substr(1, kMaxReasonBytes));
  return reply.substr(1);
}

void Store::set(const std::string& key, const std::string& value) {
  call(kSet, key, value, timeout_);
}
void Store::remove(const std::string& key) { call(kRemove, key, "", timeout_); }
void Store::fail(const std::string& reason) {
  call(kFail, "", reason.substr(0, kMaxReasonBytes), timeout_);
}
std::string Store::failure() { return call(kFail, "", "", timeout_); }
std::string Store::get(const std::string& key) { return call(kGet, key, "", timeout_); }
std::string Store::get(const std::string& key, std::chrono::milliseconds timeout) {
  return call(kGet, key, "", timeout);
}
int64_t Store::add(const std::string& key, int64_t delta) {
  const auto sum = parse_number(call(kAdd, key, std::to_string(delta), timeout_));
  if (!sum) throw CommError(fmt::format("the sum of `{}` is not a number", key));
  return *sum;
}

bool Store::put(const std::string& collection, int64_t member, int64_t size,
                const std::string& text) {
  return call(kPut, collection, membership_text({member, size, text}), timeout_) == "1";
}
std::vector<std::string> Store::all(const std::string& collection, int64_t size) {
  return texts_of_runs(call(kAll, collection, "", timeout_), size);
}
std::vector<int64_t> Store::missing(const std::string& collection, int64_t size) {
  return parse_numbers(call(kMissing, collection, std::to_string(size), timeout_), size);
}

}  // namespace mtrain::store
