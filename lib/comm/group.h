// A group of ranks that communicate: a value that is made from the mesh and handed down.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mtrain::comm {

// A link to emulate: communication over a faster link is slowed down to it. The effect of overlap
// can then be measured on any machine. The delay sleeps and takes no processor time.
struct Link {
  double latency_us = 0;
  double gbps = 0;  // Gbit/s that a rank can send, and receive at the same time; 0: unlimited
  // The kinds of streams whose communication uses it (device::stream_kind_name); empty: all.
  std::vector<std::string> streams = {};
  bool emulated() const { return latency_us > 0 || gbps > 0; }
};

// A rank's emulated link. All groups of the rank share its bandwidth. Data waits until the link has
// carried all earlier data. Messages of at most one packet for each peer are an exception, since
// networks interleave packets: they wait only for each other, but delay all later data.
class EmulatedLink {
 public:
  using TimePoint = Communicator::Clock::time_point;
  static constexpr double kPacketBytes = 4096;

  // Throws BugError if the link names an unknown kind of stream.
  explicit EmulatedLink(Link link);
  bool carries(device::StreamId stream) const;
  // Returns the time at which `bytes` that could leave at `start` have arrived. `bytes` is the
  // larger of the numbers sent and received; `peers` is the number of ranks at the other end.
  TimePoint arrival(double bytes, int peers, TimePoint start);

 private:
  const Link link_;
  std::mutex mutex_;
  // When the link has carried all data so far, and when it has carried the last packet.
  TimePoint free_{}, packets_free_{};
};

// Every rank of the group makes the same calls in the same order with the same sizes. A call is
// enqueued on `stream` and does not block the host. A failure becomes a CommError of that stream,
// which names the group, the operation, its number and the ranks that were missing. A group of one
// rank only copies. All calls of a group go to one stream; another stream needs a group of the same
// ranks under another name.
class Group {
 public:
  struct Message {
    Transfer::Kind kind;
    Tensor data;
    int peer;  // rank in the group
  };

  Group() = default;  // has no ranks
  // `ranks` are ranks of the world, in rising order; `rank` is this rank's place among them.
  // `communicator` is null for a group of one, and `link` is null if none is emulated.
  Group(std::string name, std::vector<int> ranks, int rank,
        std::shared_ptr<Communicator> communicator, std::shared_ptr<EmulatedLink> link = {});

  int rank() const;  // in the group
  int size() const;
  const std::string& name() const;        // such as "dp_cp", as in the mesh
  const std::vector<int>& ranks() const;  // ranks of the world, by rank in the group
  explicit operator bool() const { return state_ != nullptr; }

  void all_reduce(const Tensor& data, Reduce op, Stream& stream) const;  // in place
  // `in` has size() times the elements of `out`. Rank r gets the reduced part r; `out` may be this
  // rank's part of `in`.
  void reduce_scatter(const Tensor& in, const Tensor& out, Reduce op, Stream& stream) const;
  // `out` has size() times the elements of `in`; `in` may be this rank's part of `out`.
  void all_gather(const Tensor& in, const Tensor& out, Stream& stream) const;
  // Part p of `in` becomes part rank() of rank p's `out`; all parts have the same size.
  void all_to_all(const Tensor& in, const Tensor& out, Stream& stream) const;
  // The same with parts of different sizes: part p of `in` has sends[p] elements, and
  // receives[rank()] of rank p is the same number.
  void all_to_all(const Tensor& in, const std::vector<int64_t>& sends, const Tensor& out,
                  const std::vector<int64_t>& receives, Stream& stream) const;
  // The same for several tensors, which travel together.
  struct AllToAllTensor {
    Tensor in;
    std::vector<int64_t> sends;
    Tensor out;
    std::vector<int64_t> receives;
  };
  void all_to_all(const std::vector<AllToAllTensor>& tensors, Stream& stream) const;
  void broadcast(const Tensor& data, int root, Stream& stream) const;
  void send(const Tensor& data, int to, Stream& stream) const;
  void receive(const Tensor& data, int from, Stream& stream) const;
  // Moves all messages at the same time: two ranks may send to each other.
  void exchange(std::vector<Message> messages, Stream& stream) const;
  void barrier(Stream& stream) const;

  // Returns a tensor in memory that the library has registered for this group: its calls can then
  // move the data without copies between buffers, and gathers without multiprocessors. All ranks
  // call it with the same shape, and their hosts wait for each other. With `symmetric`, all ranks
  // pass the tensor's same elements to a call. Returns an absent tensor if the library has no such
  // memory. The memory is given back when the device ends.
  Tensor registered(Stream& home, const Shape& shape, DType dtype, device::MemoryCategory category,
                    bool symmetric) const;

  // Makes pending and later calls of all ranks throw CommError with this reason. Any thread may
  // call it.
  void abort(std::string_view reason) const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mtrain::comm

// Every folder may call it mtrain::Group.
namespace mtrain {
using comm::Group;
}  // namespace mtrain
