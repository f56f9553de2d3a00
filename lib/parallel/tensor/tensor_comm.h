// Communication between the ranks of tensor parallelism. It runs on a stream of its own, which
// events order with compute.
#pragma once
#include <map>

#include "comm/group.h"
#include "device/stream.h"

namespace mtrain::parallel {

// The groups and streams of tensor parallelism on one rank. Communication of all groups is enqueued
// on `on`.
struct TensorGroups {
  Group all;                      // all ranks of tp
  std::map<int, Group> replicas;  // by the number of ranks that hold copies of the same rows
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
  Stream& on() const { return *groups_.stream; }

  // The result of communication that has been enqueued; compute must wait for `there` before it
  // uses the data.
  struct Coming {
    Tensor data;
    Event there;
  };
  Coming gather(const Tensor& x_TN) const;  // (T / P, N) -> (T, N), the rows of all ranks
  Coming reduce_scatter(
      const Tensor& x_TN) const;             // (T, N) -> (T / P, N), this rank's rows of the sum
  Coming all_reduce(const Tensor& x) const;  // in place
  // Makes compute wait, and returns the data.
  Tensor await(const Coming& coming) const;

  // edge: what compute has enqueued so far -> the communication that comes next
  void after_compute() const { on().wait(compute().record()); }
  // edge: the communication so far -> what compute does next
  void before_compute() const { compute().wait(on().record()); }

 private:
  TensorGroups groups_;
};

}  // namespace mtrain::parallel
