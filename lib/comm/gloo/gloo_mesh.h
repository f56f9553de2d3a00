// The gloo connections among the ranks of one group, over which pieces of memory go from rank to
// rank. It is unrelated to the mesh of lib/mesh.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gloo::transport {
class Device;
}
namespace gloo::rendezvous {
class Context;
class Store;
}  // namespace gloo::rendezvous

namespace mtrain::comm {

// One thread sends, receives and waits; any thread may call break_off(). A piece that cannot be
// moved completely throws CollectiveFailure, which the communicator catches.
class GlooMesh {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns when all ranks of the group have connected, to each other and to nobody else.
  GlooMesh(std::shared_ptr<gloo::transport::Device> device, gloo::rendezvous::Store& store,
           int rank, int ranks, std::chrono::nanoseconds timeout);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // These begin to move a piece. Between two ranks, the n-th piece sent on a slot is the n-th piece
  // received on the same slot. Both ends must name the same number of bytes: gloo ends the process
  // if they differ.
  void send(int to, uint64_t slot, const void* data, size_t bytes);
  void receive(int from, uint64_t slot, void* data, size_t bytes);
  // These return when one more of the pieces in flight has arrived; pieces of one slot arrive in
  // their order.
  void await_send(int to, Clock::time_point deadline);
  void await_receive(int from, Clock::time_point deadline);

  // Returns when every peer has called it too or has gone, or at `deadline`. A rank calls it before
  // it disconnects: otherwise a connection could break while a peer still waits for its last
  // pieces.
  void await_last_pieces(Clock::time_point deadline) noexcept;

  // Breaks every connection: pending pieces of all ranks fail. Any thread may call it.
  void break_off() noexcept;
  // Breaks every connection and returns when gloo no longer touches the memory of any piece.
  void close() noexcept;

 private:
  struct Peer;
  void find_sockets(gloo::rendezvous::Store& store);

  int rank_, ranks_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<Peer> peers_;
};

}  // namespace mtrain::comm
