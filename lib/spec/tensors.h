// The tensors of a model: name, shape, split, role and initial values of each. Plan, checkpoint and
// interchange read this list; a test holds the model's own declarations to it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/shape.h"
#include "base/tensor_role.h"
#include "spec/model_spec.h"

namespace mtrain::spec {

// Rows of a fused matrix that have a meaning of their own; `all` of a matrix that has one meaning.
enum class Rows : uint8_t { all, query, key, value, gate, up };

// `units` units of `width` rows each, such as heads. A rank of tensor parallelism has whole units;
// fewer units than ranks are copied.
struct RowSection {
  Rows rows;
  int64_t units, width;

  int64_t count() const { return units * width; }
  bool operator==(const RowSection&) const = default;
};

// How a layout divides a tensor.
struct TensorSplit {
  enum class Dim : uint8_t { none, rows, columns };

  Dim dim = Dim::none;  // what tensor parallelism divides; none: each of its ranks has the tensor
  std::vector<RowSection> sections = {};  // Dim::rows: all rows, in their order
  bool padded = false;                    // a layout may add rows, which stay zero
  // The first dimension counts experts, which expert parallelism spreads. `dim` divides each of
  // their matrices.
  bool experts = false;

  bool operator==(const TensorSplit&) const = default;
};

enum class Init : uint8_t { normal, zeros, ones };

struct TensorSpec {
  std::string name;  // the same under every layout: "layers.3.attention.qkv.weight"
  Shape whole;       // as a single rank has it, without padding
  TensorSplit split = {};
  TensorRole role = TensorRole::matrix;
  Init init = Init::normal;
  float std = 0;  // standard deviation under Init::normal

  bool operator==(const TensorSpec&) const = default;
};

// Return tensors in the order in which the model declares them. Tensors of the role `state` are in
// checkpoints beside the model's parameters.
std::vector<TensorSpec> embedding_tensors(const ModelSpec& model);
std::vector<TensorSpec> layer_tensors(const ModelSpec& model, int64_t layer);
std::vector<TensorSpec> output_tensors(const ModelSpec& model);
std::vector<TensorSpec> tensors(const ModelSpec& model);     // all of them
std::vector<TensorSpec> parameters(const ModelSpec& model);  // without states

}  // namespace mtrain::spec
