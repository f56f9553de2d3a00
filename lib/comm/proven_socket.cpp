#include "comm/proven_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "store/store_protocol.h"

namespace mtrain::comm {

namespace {

// Neither end mistakes a store, or another version, for its peer.
constexpr std::string_view kPeerGreeting = "mtrain peer 1\n";

std::string system_text() { return std::strerror(errno); }

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses numeric(const std::string& address, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  const int unknown = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (unknown != 0)
    throw CommError(fmt::format("{} is not an address: {}", address, gai_strerror(unknown)));
  return {found, &freeaddrinfo};
}

[[noreturn]] void fail_to_connect(int error) {
  if (error == ECONNREFUSED) throw ConnectionRefused(std::strerror(error));
  throw CommError(std::strerror(error));
}

int make_socket(const addrinfo& at) {
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw CommError("no socket: " + system_text());
  return fd;
}

}  // namespace

ProvenSocket::ProvenSocket(const std::string& address, uint16_t port, const Options& o)
    : fd_(-1), patience_(o.patience), stop_(o.stop), deadline_(Clock::now() + o.proof) {
  const Addresses at = numeric(address, port);
  fd_ = make_socket(*at);
  try {
    if (connect(fd_, at->ai_addr, at->ai_addrlen) < 0) {
      if (errno != EINPROGRESS) fail_to_connect(errno);
      wait(POLLOUT);
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
      if (error) fail_to_connect(error);
    }
    prove_as_client(o.token);
  } catch (const CommError& e) {
    close(fd_);
    const std::string text =
        fmt::format("no connection to {} port {}: {}", address, port, e.message());
    if (dynamic_cast<const ConnectionRefused*>(&e)) throw ConnectionRefused(text);
    throw CommError(text);
  }
  proven_ = true;
}

ProvenSocket::ProvenSocket(int fd, const Options& o)
    : fd_(fd), patience_(o.patience), stop_(o.stop), deadline_(Clock::now() + o.proof) {
  try {
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
    prove_as_server(o.token);
  } catch (const CommError&) {
    close(fd_);
    throw;
  }
  proven_ = true;
}

ProvenSocket::~ProvenSocket() { close(fd_); }

// The server proves first: the client reveals nothing to a program that poses as the server.
void ProvenSocket::prove_as_client(const Token& token) {
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const store::Nonce own = store::make_nonce();
  std::string hello(kPeerGreeting);
  hello.append(store::bytes_of(own));
  send(hello.data(), hello.size());
  std::string greeting(kPeerGreeting.size(), '\0');
  receive(greeting.data(), greeting.size());
  if (greeting != kPeerGreeting) throw CommError("another program answers there");
  store::Nonce server;
  store::Proof proof;
  receive(server.data(), server.size());
  receive(proof.data(), proof.size());
  if (!store::same_proof(store::make_proof(token, store::StoreEnd::server, own, server),
                         store::bytes_of(proof)))
    throw CommError("the server does not know this job's token");
  const store::Proof answer = store::make_proof(token, store::StoreEnd::client, own, server);
  send(answer.data(), answer.size());
  if (receive_letter() != store::kWelcome) throw CommError("another program answers there");
}

void ProvenSocket::prove_as_server(const Token& token) {
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::string greeting(kPeerGreeting.size(), '\0');
  store::Nonce client;
  receive(greeting.data(), greeting.size());
  if (greeting != kPeerGreeting) throw CommError("another program connects");
  receive(client.data(), client.size());
  const store::Nonce own = store::make_nonce();
  const store::Proof proof = store::make_proof(token, store::StoreEnd::server, client, own);
  std::string hello(kPeerGreeting);
  hello.append(store::bytes_of(own));
  hello.append(store::bytes_of(proof));
  send(hello.data(), hello.size());
  store::Proof answer;
  receive(answer.data(), answer.size());
  if (!store::same_proof(store::make_proof(token, store::StoreEnd::client, client, own),
                         store::bytes_of(answer)))
    throw CommError("the client does not know this job's token");
  send_letter(store::kWelcome);
}

void ProvenSocket::wait(short events) {
  const auto now = Clock::now();
  const auto end = proven_ ? now + patience_ : std::min(deadline_, now + patience_);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (stop_ && *stop_) throw CommError("it was given up");
    if (left <= 0) throw CommError("the peer is silent");
    pollfd p{fd_, events, 0};
    if (poll(&p, 1, int(std::min<int64_t>(left, 100))) > 0) return;
  }
}

void ProvenSocket::send(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(fd_, at, bytes, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      bytes -= size_t(n);
    } else if (n < 0 && errno == EAGAIN) {
      wait(POLLOUT);
    } else if (n == 0 || errno != EINTR) {
      throw CommError("the peer is gone: " + system_text());
    }
  }
}

void ProvenSocket::receive(void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = recv(fd_, at, bytes, 0);
    if (n > 0) {
      at += n;
      bytes -= size_t(n);
    } else if (n == 0) {
      throw CommError("the peer has closed the connection");
    } else if (errno == EAGAIN) {
      wait(POLLIN);
    } else if (errno != EINTR) {
      throw CommError("the peer is gone: " + system_text());
    }
  }
}

void ProvenSocket::send_number(int64_t value) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = uint8_t(uint64_t(value) >> (8 * i));
  send(bytes, sizeof bytes);
}

int64_t ProvenSocket::receive_number() {
  uint8_t bytes[8];
  receive(bytes, sizeof bytes);
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t(bytes[i]) << (8 * i);
  return int64_t(value);
}

void ProvenSocket::send_text(std::string_view text) {
  send_number(int64_t(text.size()));
  send(text.data(), text.size());
}

std::string ProvenSocket::receive_text(size_t most) {
  const int64_t bytes = receive_number();
  if (bytes < 0 || uint64_t(bytes) > most)
    throw CommError(fmt::format("a text of {} bytes, and at most {} are allowed", bytes, most));
  std::string text(size_t(bytes), '\0');
  receive(text.data(), text.size());
  return text;
}

char ProvenSocket::receive_letter() {
  char letter = 0;
  receive(&letter, 1);
  return letter;
}

Listener listen_at(const std::string& address) {
  const Addresses at = numeric(address, 0);
  constexpr int kBacklog = 1024;  // connections that the kernel completes before they are accepted
  Listener l{.fd = make_socket(*at)};
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (bind(l.fd, at->ai_addr, at->ai_addrlen) < 0 || listen(l.fd, kBacklog) < 0 ||
      getsockname(l.fd, reinterpret_cast<sockaddr*>(&bound), &size) < 0) {
    const std::string why = system_text();
    close(l.fd);
    throw CommError(fmt::format("cannot listen at {}: {}", address, why));
  }
  l.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return l;
}

}  // namespace mtrain::comm
