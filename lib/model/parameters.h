// Parameters in flat per-unit buffers. A unit (the embedding, one block, the head) is what data
// parallelism gathers, reduces and shards as a whole; inside it the parameters that decay come
// first, so that the optimizer sees at most two ranges.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace mtrain {

enum class Init { normal, zeros, ones };

struct ParamSpec {
  std::string name;  // global, layout-free: "layers.3.attention.qkv.weight"
  Shape shape;
  Init init = Init::normal;
  float std = 0.02f;  // of Init::normal
  bool decay = true;
  int64_t rows = -1;  // rows that are real; the others are padding and stay zero. -1: all
  bool matmul_grad =
      true;  // the gradient's first contribution of a step overwrites it (see Parameter::fresh)
};

struct Parameter : ParamSpec {
  Tensor value;        // in the compute dtype: what forward and backward read
  Tensor master;       // fp32; the same memory as `value` where that is fp32
  Tensor grad;         // fp32 main gradient
  bool fresh = false;  // no contribution since zero_grads(): the first matmul writes instead of
                       // adding, so that its buffer needs no clearing
  // True once per step for a matmul gradient: this contribution overwrites.
  bool take_fresh() {
    const bool was = fresh;
    fresh = false;
    return was;
  }
  int64_t real_rows() const { return rows < 0 ? shape[0] : rows; }
};

struct ParamUnit {
  std::string name;
  std::vector<Parameter*> params;
  Tensor value, master, grad;  // flat
  int64_t decay_end = 0;       // elements [0, decay_end) decay, the rest do not
};

class ParamStore {
 public:
  // Declares a parameter of `unit`; units keep the order of their first parameter. The pointer
  // stays valid.
  Parameter* add(const std::string& unit, ParamSpec spec);
  // Allocates everything; `compute` is fp32 or bf16. Gradients and master weights only where
  // `training`.
  void materialize(Stream& on, DType compute, bool training);
  // Every element is a function of (seed, name, its index in the layout-free tensor).
  void initialize(Stream& on, uint64_t seed);
  void set_master(Stream& on, Parameter& p,
                  const std::vector<float>& values);  // real rows; also writes `value`
  void zero_grads(Stream& on);

  std::vector<ParamUnit*> units();
  std::vector<Parameter*> params();
  Parameter* find(const std::string& name);  // null where there is none

 private:
  std::deque<Parameter> params_;
  std::deque<ParamUnit> units_;
};

}  // namespace mtrain
