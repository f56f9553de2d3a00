// The pieces that ranks have of each parameter, and the layout-free tensors that these pieces make.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace mtrain::train {

// The elements of a parameter that one rank has.
struct Piece {
  std::vector<model::ElementRun> runs;
  std::vector<float> values;
  bool operator==(const Piece&) const = default;
};
using Pieces = std::map<std::string, Piece>;  // by the parameter's name

// `full` returns a unit's values on this rank, without the shards of data parallelism. It may
// communicate: all ranks then call this.
Pieces pieces(Trainer& trainer, const std::function<Tensor(model::ParamUnit&)>& full);

// The pieces of the optimizer's first state. After the first step of AdamW these are the clipped
// gradients times 1 - beta. All ranks call this.
Pieces first_moments(Trainer& trainer);

struct AssembledTensor {
  std::vector<float> values;  // empty: no rank has the parameter
  bool complete = true;       // some rank has each element
  bool same = true;           // elements that several ranks have are the same bits
};
AssembledTensor assemble_pieces(const std::vector<const Pieces*>& ranks, const std::string& name);

}  // namespace mtrain::train
