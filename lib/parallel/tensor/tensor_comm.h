// Communication between the ranks of tensor parallelism. It runs on a stream of its own; events
// order it with compute.
#pragma once
#include <map>

#include "comm/group.h"
#include "device/stream.h"

namespace mtrain::parallel {

// The groups and streams of tensor parallelism on one rank. Communication of all groups is enqueued
// on `stream`.
struct TensorGroups {
  Group all;                      // all ranks of tp
  std::map<int, Group> replicas;  // ranks that hold the same rows, by the number of these ranks
  Stream *compute, *stream;
};

class TensorComm {
 public:
  explicit TensorComm(TensorGroups groups) : groups_(std::move(groups)) {}
  int size() const { return groups_.all.size(); }
  int rank() const { return groups_.all.rank(); }
  const TensorGroups& groups() const { return groups_; }
  const Group& all() const { return groups_.all; }
  Stream& compute() const { return *groups_.compute; }
  Stream& stream() const { return *groups_.stream; }

  // The result of communication that has been enqueued. Compute must wait for `ready` before it
  // uses the data.
  struct Pending {
    Tensor data;
    Event ready;
  };
  // (T / P, N) -> (T, N), the rows of all ranks.
  Pending gather(const Tensor& x_TN) const;
  // (T, N) -> (T / P, N), this rank's rows of the sum.
  Pending reduce_scatter(const Tensor& x_TN) const;
  // Sums in place.
  Pending all_reduce(const Tensor& x) const;
  // Makes compute wait for the communication, and returns its result.
  Tensor await(const Pending& pending) const;

  // edge: what compute has enqueued so far -> the communication that comes next
  void after_compute() const { stream().wait(compute().record()); }
  // edge: the communication so far -> what compute does next
  void before_compute() const { compute().wait(stream().record()); }

 private:
  TensorGroups groups_;
};

}  // namespace mtrain::parallel
