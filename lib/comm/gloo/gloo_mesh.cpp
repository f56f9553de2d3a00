#include "comm/gloo/gloo_mesh.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/address.h>

#include "base/error.h"
#include "base/strings.h"
#include "comm/failure_reporter.h"

namespace mtrain::comm {

namespace {

constexpr uint64_t kNeverSent = std::numeric_limits<uint64_t>::max();  // a slot without messages
constexpr uint64_t kParting = kNeverSent - 1;                          // of await_last_pieces()

// Replaces the congestion control bbr, which paces its sends and so halves the bandwidth of fast
// links, by cubic, or by reno, which every Linux has.
void avoid_pacing(int fd) {
  char name[16] = {};
  socklen_t length = sizeof name - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) < 0 ||
      std::string_view(name) != "bbr")
    return;
  for (const std::string_view other : {"cubic", "reno"})
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, other.data(), other.size()) == 0) return;
}

std::chrono::milliseconds left(GlooMesh::Clock::time_point deadline) {
  using std::chrono::milliseconds;
  // Gloo gives zero and negative times other meanings. A wait that ended before the deadline, even
  // by a part of a millisecond, would be mistaken for a broken connection.
  return std::max(milliseconds(1),
                  std::chrono::ceil<milliseconds>(deadline - GlooMesh::Clock::now()));
}

}  // namespace

struct GlooMesh::Peer {
  // Spans all memory: an offset is an address. All pieces to and from the peer go through this one
  // buffer; its waits end when the connection breaks.
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  // A second handle of the connection's socket. Shutting the connection down through it cannot hit
  // another file that got the same number after gloo closed its own handle.
  int socket = -1;

  Peer() = default;
  Peer(Peer&& other) noexcept : buffer(std::move(other.buffer)), socket(other.socket) {
    other.socket = -1;
  }
  ~Peer() {
    if (socket >= 0) ::close(socket);
  }
};

namespace {

// Returns the address and port. Leaves out the interface's name (fe80::1%eth0), which is valid only
// on this host.
std::string text_of(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port,
                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "none";
  const std::string_view address_and_interface = host;
  return fmt::format("{} {}", address_and_interface.substr(0, address_and_interface.find('%')),
                     port);
}

// Returns what `name` (getsockname or getpeername) gives; "none" for a socket without it.
std::string end_of(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return name(fd, reinterpret_cast<sockaddr*>(&address), &length) < 0 ? "none"
                                                                      : text_of(address, length);
}

// A connection's ends on this host and on the other.
using Ends = std::pair<std::string, std::string>;

Ends ends_of(int fd) { return {end_of(fd, getsockname), end_of(fd, getpeername)}; }

// Returns this process's connected sockets by their ends. One end does not identify a socket, since
// gloo lets sockets share a local port.
std::map<Ends, int> connected_sockets() {
  std::map<Ends, int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (Ends ends = ends_of(fd); ends.second != "none") sockets.emplace(std::move(ends), fd);
  }
  return sockets;
}

// Returns a duplicate of the socket between these ends, since gloo does not give access to its own
// handle; -1 if there is none.
int duplicate_socket(const std::map<Ends, int>& sockets, const Ends& ends) {
  const auto found = sockets.find(ends);
  if (found == sockets.end()) return -1;
  const int duplicate = fcntl(found->second, F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0 || ends_of(duplicate) == ends) return duplicate;
  ::close(duplicate);  // the number has become another file's
  return -1;
}

}  // namespace

// Gloo accepts the first connection that arrives as its peer's. Each rank therefore publishes the
// addresses of its own ends of the connections in the store, which only ranks can use. No stranger
// can have the address of a connected end.
void GlooMesh::find_sockets(gloo::rendezvous::Store& store) {
  std::vector<std::string> own(static_cast<size_t>(ranks_), "own");
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_) continue;
    const gloo::transport::tcp::Address address(context_->getPair(r)->address().bytes());
    own[size_t(r)] = text_of(address.getSockaddr(), sizeof(sockaddr_storage));
  }
  std::string lines;
  for (const std::string& end : own) lines += end + "\n";
  store.set(fmt::format("ends_{}", rank_), std::vector<char>(lines.begin(), lines.end()));
  const std::map<Ends, int> sockets = connected_sockets();
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_) continue;
    const std::vector<char> text = store.get(fmt::format("ends_{}", r));
    const auto ends = split({text.data(), text.size()}, '\n');
    const std::string peer = ends.size() > size_t(rank_) ? ends[size_t(rank_)] : "none";
    peers_[size_t(r)].socket = duplicate_socket(sockets, {own[size_t(r)], peer});
    if (peers_[size_t(r)].socket < 0)
      throw CommError(
          fmt::format("rank {} of the group is not at the other end of its connection", r),
          "another program has connected to this rank's port while the ranks connected: start the "
          "job again; or addresses are translated between the ranks (NAT), which gloo cannot use");
  }
}

GlooMesh::GlooMesh(std::shared_ptr<gloo::transport::Device> device, gloo::rendezvous::Store& store,
                   int rank, int ranks, std::chrono::nanoseconds timeout)
    : rank_(rank),
      ranks_(ranks),
      context_(std::make_shared<gloo::rendezvous::Context>(rank, ranks)),
      peers_(size_t(ranks)) {
  // Gloo's pairs take this timeout when they are made, and wait five times as long to connect.
  context_->setTimeout(
      std::max(std::chrono::milliseconds(1),
               std::chrono::duration_cast<std::chrono::milliseconds>(timeout) / 5));
  context_->connectFullMesh(store, device);
  find_sockets(store);
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    Peer& peer = peers_[size_t(r)];
    avoid_pacing(peer.socket);
    peer.buffer = context_->createUnboundBuffer(nullptr, std::numeric_limits<size_t>::max());
    // Gloo forgets pieces in flight when a connection breaks. This receive is always pending;
    // therefore a wait on the buffer then fails.
    peer.buffer->recv(r, kNeverSent, 0, 0);
  }
}

GlooMesh::~GlooMesh() = default;

namespace {

template <class F>
void guarded(int peer, bool sending, GlooMesh::Clock::time_point deadline, F work) {
  try {
    work();
  } catch (const std::exception& e) {
    throw CollectiveFailure{peer, sending, GlooMesh::Clock::now() >= deadline, e.what()};
  }
}

constexpr auto kNoDeadline = GlooMesh::Clock::time_point::max();

}  // namespace

void GlooMesh::send(int to, uint64_t slot, const void* data, size_t bytes) {
  guarded(to, true, kNoDeadline, [&] {
    peers_[size_t(to)].buffer->send(to, slot, reinterpret_cast<size_t>(data), bytes);
  });
}

void GlooMesh::receive(int from, uint64_t slot, void* data, size_t bytes) {
  guarded(from, false, kNoDeadline, [&] {
    peers_[size_t(from)].buffer->recv(from, slot, reinterpret_cast<size_t>(data), bytes);
  });
}

void GlooMesh::await_send(int to, Clock::time_point deadline) {
  guarded(to, true, deadline,
          [&] { peers_[size_t(to)].buffer->waitSend(nullptr, left(deadline)); });
}

void GlooMesh::await_receive(int from, Clock::time_point deadline) {
  guarded(from, false, deadline,
          [&] { peers_[size_t(from)].buffer->waitRecv(nullptr, left(deadline)); });
}

void GlooMesh::await_last_pieces(Clock::time_point deadline) noexcept {
  const auto with_peers = [&](const auto& f) {
    for (int r = 0; r < ranks_; ++r) {
      try {
        if (r != rank_) f(r);
      } catch (const CollectiveFailure&) {
        // The peer is gone.
      }
    }
  };
  with_peers([&](int r) { receive(r, kParting, nullptr, 0); });
  with_peers([&](int r) { send(r, kParting, nullptr, 0); });
  with_peers([&](int r) { await_receive(r, deadline); });
  with_peers([&](int r) { await_send(r, deadline); });
}

void GlooMesh::break_off() noexcept {
  for (const Peer& peer : peers_)
    if (peer.socket >= 0) shutdown(peer.socket, SHUT_RDWR);
}

void GlooMesh::close() noexcept {
  break_off();
  for (int r = 0; r < ranks_; ++r) {
    try {
      if (r != rank_) context_->getPair(r)->close();
    } catch (const std::exception&) {
      // The pair is closed already.
    }
  }
}

}  // namespace mtrain::comm
