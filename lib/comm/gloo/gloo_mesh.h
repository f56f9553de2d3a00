// The connections among the ranks of one group, over gloo: pieces of memory go from rank to rank.
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

namespace mtrain {

// One thread sends, receives and waits; any may break off. A piece that does not come to its end
// throws CollectiveFailure, which nobody above the communicator sees.
class GlooMesh {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns when all ranks of the group have connected.
  GlooMesh(std::shared_ptr<gloo::transport::Device> device, gloo::rendezvous::Store& store,
           int rank, int ranks, std::chrono::nanoseconds timeout);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // These begin a piece. Pieces of one slot between the same two ranks meet in their order; a piece
  // of another slot never meets them. Both ends name the same number of bytes: gloo ends the
  // process where they differ.
  void send(int to, uint64_t slot, const void* data, size_t bytes);
  void receive(int from, uint64_t slot, void* data, size_t bytes);
  // One more of the pieces begun has ended; in order where they have the same slot.
  void await_send(int to, Clock::time_point deadline);
  void await_receive(int from, Clock::time_point deadline);

  // Returns when every peer has called it too, has gone, or `deadline` has come. A connection that
  // breaks while a peer still waits for its last pieces would take them from it.
  void part(Clock::time_point deadline) noexcept;

  // Breaks every connection: pending pieces of all ranks fail. Any thread.
  void break_off() noexcept;
  // The same, and no memory is touched any more when it returns.
  void close() noexcept;

 private:
  struct Peer;
  int rank_, ranks_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<Peer> peers_;
};

}  // namespace mtrain
