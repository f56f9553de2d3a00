// Lists the tensors of a model: name, shape, split, role and initial values of each. Plan,
// checkpoint and interchange read this list. A test compares the model's own declarations with it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"
#include "base/tensor_role.h"
#include "spec/model_spec.h"

namespace mtrain::spec {

// The meaning of a section of rows in a fused matrix; `all` in a matrix that is not fused.
enum class Rows : uint8_t { all, query, key, value, gate, up };

// `units` units of `width` rows each, such as heads. Tensor parallelism does not split a unit. If
// there are fewer units than ranks, several ranks have the same unit.
struct RowSection {
  Rows rows;
  int64_t units, width;

  int64_t count() const { return units * width; }
  bool operator==(const RowSection&) const = default;
};

// How a layout divides a tensor.
struct TensorSplit {
  enum class Dim : uint8_t { none, rows, columns };

  Dim dim = Dim::none;  // what tensor parallelism divides; none: each tp rank has the full tensor
  std::vector<RowSection> sections = {};  // with Dim::rows: the sections of all rows, in order
  bool padded = false;                    // a layout may add rows, which stay zero
  // The first dimension is that of experts, which expert parallelism divides among its ranks. `dim`
  // applies to the matrix of each expert.
  bool experts = false;

  bool operator==(const TensorSplit&) const = default;
};

enum class Init : uint8_t { normal, uniform, zeros, ones };

struct TensorSpec {
  std::string name;  // the same under every layout: "layers.3.attention.qkv.weight"
  Shape full_shape;  // the shape on a single rank, without padding
  TensorSplit split = {};
  TensorRole role = TensorRole::matrix;
  Init init = Init::normal;
  // Standard deviation under Init::normal; the largest magnitude under Init::uniform.
  float std = 0;
  bool frozen = false;   // training does not change it
  bool adapter = false;  // A or B of an adapter

  bool operator==(const TensorSpec&) const = default;
};

// Return tensors in the order in which the model declares them. Tensors of the role `state` are not
// parameters, but checkpoints contain them.
std::vector<TensorSpec> embedding_tensors(const ModelSpec& model);
std::vector<TensorSpec> layer_tensors(const ModelSpec& model, int64_t layer);
std::vector<TensorSpec> output_tensors(const ModelSpec& model);
std::vector<TensorSpec> tensors(const ModelSpec& model);     // all of them
std::vector<TensorSpec> parameters(const ModelSpec& model);  // without states

// Returns how the names of the tensors of a section's adapter begin, after the linear's name:
// ".lora.query".
std::string adapter_prefix(Rows rows);

// Returns the tensor of that name; find_tensor() returns null if the list lacks it.
const TensorSpec* find_tensor(const std::vector<TensorSpec>& list, std::string_view name);
const TensorSpec& tensor_of(const std::vector<TensorSpec>& list, std::string_view name);

}  // namespace mtrain::spec
