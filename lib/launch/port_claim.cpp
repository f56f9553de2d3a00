#include "launch/port_claim.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace mtrain::launch {

namespace {

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  socklen_t size = sizeof a;
  uint16_t port = 0;
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&a), size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0)
    port = ntohs(a.sin_port);
  if (fd >= 0) close(fd);
  if (port == 0) throw RunError(fmt::format("no free port: {}", std::strerror(errno)));
  return port;
}

// Returns a descriptor that has the claim, or -1. An abstract socket name (without a file) belongs
// to the same network namespace as the port, and ends with the process.
int claim(uint16_t port, int node) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw RunError(fmt::format("no socket: {}", std::strerror(errno)));
  const std::string name = fmt::format("mtrain-launch port {} node {}", port, node);
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::memcpy(a.sun_path + 1, name.data(), name.size());
  const auto size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd, reinterpret_cast<sockaddr*>(&a), size) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

PortClaim::PortClaim(uint16_t port, int node) : port_(port), fd_(-1) {
  constexpr int kTries = 100;
  for (int i = 0; fd_ < 0 && i < kTries; ++i) {
    if (port == 0) port_ = free_port();
    fd_ = claim(port_, node);
    if (fd_ < 0 && port != 0)
      throw UserError(
          fmt::format("another mtrain-launch of this host uses port {} for node {}", port, node),
          "give each host of a job a --node_rank of its own: 0, 1, ...; for another job choose "
          "another port with --master_port or --rdzv_endpoint");
  }
  if (fd_ < 0) throw RunError("no free port for the rendezvous");
}

PortClaim::~PortClaim() { close(fd_); }

}  // namespace mtrain::launch
