// How Hugging Face's families name the tensors that mtrain has: one row for each tensor of theirs,
// read in both directions (interchange/tensor_map.h).
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "spec/tensors.h"

namespace mtrain::interchange {

// Which rows of mtrain's a tensor of theirs holds: mtrain has queries, keys and values in one
// matrix, and the gate and the input projection of a gated MLP in another.
using spec::Rows;

// A tensor of theirs. In the names {l} stands for a layer and {e} for an expert, whose matrix is
// one of the three dimensions of mtrain's tensor.
struct TensorRow {
  std::string_view ours, theirs;
  Rows rows = Rows::all;
  bool transposed = false;  // theirs is (inputs, outputs), as GPT-2's Conv1D has it
};

struct Family {
  std::string_view model_type;   // of config.json
  std::string_view class_name;   // in its architectures
  std::string_view prefix;       // before names of the base model; a folder of that alone lacks it
  std::vector<TensorRow> rows;   // how transformers writes them
  std::vector<TensorRow> fused;  // instead of the rows of the same `ours`, if a folder has these
  // Ends of the names of buffers that older versions wrote and nothing reads.
  std::span<const std::string_view> buffers;
  // The key of config.json with the number of layers behind the model's own that predict further
  // tokens, and its value if it is left out. They are not built, and left out; "": there are none.
  std::string_view further_layers = {};
  int64_t further_layers_omitted = 0;
};

// Returns the family of a model_type, or null.
const Family* find_family(std::string_view model_type);

}  // namespace mtrain::interchange
