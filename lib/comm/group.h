// A group of ranks that communicate: a value that is made from the mesh and handed down.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mtrain {

// Slows a fast link down to a given one, so that what overlap hides can be measured anywhere.
// Completion is delayed without burning CPU.
struct Link {
  double latency_us = 0;
  double gbps = 0;  // Gbit/s that a rank can send; 0: as fast as it goes
  bool emulated() const { return latency_us > 0 || gbps > 0; }
};

// A rank's emulated link, which all its groups share: what two of them send takes the time of both.
class EmulatedLink {
 public:
  explicit EmulatedLink(Link link) : link_(link) {}
  // Returns when `bytes` that were ready to be sent at `start` have arrived.
  void carry(double bytes, Communicator::Clock::time_point start);

 private:
  const Link link_;
  std::mutex mutex_;
  Communicator::Clock::time_point free_{};  // when it has sent what came before
};

// Every rank of the group makes the same calls in the same order with the same sizes. Calls are
// enqueued on `on` and return at once; they take their place in its order, and the host does not
// block. What fails is a CommError of that stream, which names the group, the operation, its number
// and the ranks that were missing. A group of one rank copies at most. The calls of one group
// are enqueued on one stream: another stream takes a group of the same ranks under another name.
class Group {
 public:
  struct Message {
    Transfer::Kind kind;
    Tensor data;
    int peer;  // rank in the group
  };

  Group() = default;  // of no ranks
  // `ranks`: of the world, rising; `rank`: this one's place among them. `communicator` is null for
  // a group of one, `link` where none is emulated.
  Group(std::string name, std::vector<int> ranks, int rank,
        std::shared_ptr<Communicator> communicator, std::shared_ptr<EmulatedLink> link = {});

  int rank() const;  // in the group
  int size() const;
  const std::string& name() const;        // "dp_cp", as in the mesh
  const std::vector<int>& ranks() const;  // of the world, by rank in the group
  explicit operator bool() const { return state_ != nullptr; }

  void all_reduce(const Tensor& data, Reduce op, Stream& on) const;  // in place
  // in: size() times out. Rank r gets the reduced part r; `out` may be this rank's part of `in`.
  void reduce_scatter(const Tensor& in, const Tensor& out, Reduce op, Stream& on) const;
  // out: size() times in; `in` may be this rank's part of `out`.
  void all_gather(const Tensor& in, const Tensor& out, Stream& on) const;
  // Part p of `in` becomes part rank() of rank p's `out`; all parts alike.
  void all_to_all(const Tensor& in, const Tensor& out, Stream& on) const;
  // Part p has sends[p] elements and arrives as receives[rank()] of rank p.
  void all_to_all(const Tensor& in, const std::vector<int64_t>& sends, const Tensor& out,
                  const std::vector<int64_t>& receives, Stream& on) const;
  void broadcast(const Tensor& data, int root, Stream& on) const;
  void send(const Tensor& data, int to, Stream& on) const;
  void receive(const Tensor& data, int from, Stream& on) const;
  // Together, so that two ranks may send to each other at once.
  void exchange(std::vector<Message> messages, Stream& on) const;
  void barrier(Stream& on) const;

  // Pending and later calls of all ranks throw CommError, which tells the reason. Any thread.
  void abort(std::string_view reason) const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mtrain
