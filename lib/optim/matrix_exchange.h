// Brings whole matrices together for an optimizer whose update needs them, under every layout.
//
// Parameters, gradients and the optimizer's state stay where data, tensor and expert parallelism
// put them, cut anywhere. In each update a matrix has one owner among the ranks of a pipeline's
// stage: the others send it their parts of the gradient, it works on the whole matrix, and sends
// the parts of the result back to all ranks that have them. Owners are balanced by their work; a
// rank that has the matrix already is preferred.
//
// Why not divide the parameters at the borders of matrices instead: all-gathers and
// reduce-scatters need equal parts. A layer of one large and six small matrices would pad every
// rank to the size of the large one. Tensor and expert parallelism divide matrices in any case, and
// AdamW's layout, speed and bits would depend on it.
//
// Replicas of the model share the matrices, too. A matrix is gathered and given back within the
// owner's replica, whose ranks then broadcast the result in place to those that have the same
// elements. Under ddp, where each rank has all matrices, only the broadcasts are left.
//
// Matrices travel in rounds: a rank holds a few of them at a time. The next round's matrices are
// under way while a rank works on this round's.
#pragma once
#include <functional>
#include <vector>

#include "optim/matrix_shares.h"
#include "optim/optimizer.h"

namespace mtrain::optim {

class MatrixExchange {
 public:
  struct Owned {
    const model::Parameter* param;
    Matrix matrix;
  };
  using Flops = std::function<double(int64_t rows, int64_t columns)>;

  // All of `ranks` call this. `has` says whose matrices are meant. `per_shard`: the part of a
  // weight that a rank of tensor parallelism has is a matrix; otherwise the weight is.
  MatrixExchange(Stream& compute, const MatrixRanks& ranks, model::ParamStore& params,
                 const OwnedState::Has& has, const Flops& flops, bool per_shard);

  // Calls `work` with each matrix that this rank owns, (rows, columns) in fp32, made of the owned
  // gradients of all ranks. `work` replaces it, and what it leaves becomes the owned gradients. All
  // ranks call it.
  void run(const std::function<void(const Owned&, const Tensor& whole_RC)>& work) const;

 private:
  // A tile of a matrix that travels to or from rank `peer`.
  struct Part {
    int peer;
    size_t slot;  // of Round::owned; unused by ranks that do not own the matrix
    const model::Parameter* param;
    Tile tile;
  };
  // The result of a tile, which a rank broadcasts to those that own the same elements.
  struct Copy {
    Group ranks;
    int root;
    const model::Parameter* param;
    Tile tile;
  };
  struct Round {
    std::vector<Owned> owned;
    std::vector<Copy> copies;               // those that this rank sends or receives
    std::vector<Part> sent, collected;      // tiles to the owners, and to this rank as one of them
    std::vector<Part> results, returned;    // tiles from this rank as an owner, and to this rank
    bool gathers = false, returns = false;  // whether any rank of the group sends such tiles
  };
  // A message to or from each rank: the elements of its parts, one after the other.
  struct Message {
    Tensor data;
    std::vector<int64_t> counts;  // by rank
  };
  struct Gathered {
    Message received;
    Event arrived{};
    std::vector<Tensor> whole;   // by slot
    std::vector<bool> in_place;  // whether the matrix is the memory of this rank's gradient
  };

  using Subgroup = std::function<Group(const std::vector<int>& members)>;
  std::vector<std::vector<Place>> exchange_places(
      const std::vector<const model::Parameter*>& params) const;
  Message message_of(const std::vector<Part>& parts) const;
  void add_parts(Round& round, const Owned& m, int owner, const std::vector<Place>& places,
                 const Subgroup& subgroup) const;
  Gathered gather(const Round& round) const;
  void place(const Round& round, Gathered& gathered) const;
  Message give_back(const Round& round, const Gathered& gathered, Event& arrived) const;
  void take_back(const Round& round, const Message& received, const Event& arrived) const;
  void broadcast(const Round& round) const;

  Stream &compute_, &stream_;
  const Group group_;
  std::vector<Round> rounds_;
};

}  // namespace mtrain::optim
