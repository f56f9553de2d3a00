// Gathers full matrices for an optimizer whose update needs them, under every layout.
//
// Parameters, gradients and the optimizer's state stay where data, tensor and expert parallelism
// put them, split at any element. Each matrix has one owner among the ranks of a pipeline stage. In
// an update the other ranks send the owner their parts of the gradient. The owner works on the full
// matrix, and returns to every rank its part of the result. Owners are chosen to balance the work;
// a rank that already has the matrix is preferred.
//
// Parameters are not split between matrices instead, because all-gathers and reduce-scatters need
// equal parts. A layer of one large and six small matrices would pad every rank to the size of the
// large one. Tensor and expert parallelism split matrices in any case. AdamW's layout, speed and
// bits would change with such a split, too.
//
// Replicas of the model share the work. A matrix is gathered and returned within the owner's
// replica. The ranks of this replica then broadcast the result, in place, to the ranks of other
// replicas that have the same elements. Under ddp, where each rank has all matrices, only the
// broadcasts remain.
//
// Matrices travel in rounds, so that a rank holds only a few at a time. The matrices of the next
// round travel while a rank works on those of the current round.
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

  // All of `ranks` call this. `has` selects the parameters whose matrices are exchanged. `flops` is
  // the work on a matrix. `per_shard`: the part of a weight that a rank of tensor parallelism has
  // is a matrix; otherwise the weight is.
  MatrixExchange(Stream& compute, const MatrixRanks& ranks, model::ParamStore& params,
                 const OwnedState::Has& has, const Flops& flops, bool per_shard);

  // Gathers the owned gradients of all ranks to matrices, (rows, columns) in fp32, and calls `work`
  // with each matrix that this rank owns. `work` writes its result into the matrix; the result then
  // replaces the owned gradients of all ranks. All ranks call it.
  void run(const std::function<void(const Owned&, const Tensor& full_RC)>& work) const;

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
    std::vector<Tensor> full;    // by slot
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
