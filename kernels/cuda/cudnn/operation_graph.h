// A description of a computation for a library of fused operations: tensors, and operations between
// them. This header includes no CUDA header.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::kernels::cuda {

enum class Element : uint8_t { f32, bf16, f16, i32, boolean };

enum class Operation : uint8_t {
  matmul,      // x (.., M, K) y (.., K, N); in the other dims a size of 1 or a divisor is repeated
  reshape,     // the same elements with different strides
  reduce_add,  // over the dims in which the output is smaller
  reduce_max,  //
  add,         // x and y
  sub,         //
  mul,         //
  div,         //
  exp,         // x only
  log,         //
  identity,    //
  index,       // the position in dim `axis`
  greater,     // x > y
  greater_equal,  //
  less,           //
  logical_and,    // x and y
  select          // z ? x : y
};

using Sizes = std::vector<int64_t>;

struct GraphTensor {
  enum class Place : uint8_t {
    memory,     // the caller's memory
    workspace,  // memory for the duration of an execution
    inside,     // never written to memory
    value       // a number given with each execution
  };
  int64_t id;
  Sizes dims, strides;  // in elements
  Element type;
  Place place;
  float value = 0;
  // The id of a tensor of B + 1 int32: batch b begins at its element offsets[b] instead of at b *
  // strides[0]. 0: none. `room` then counts the elements of all batches.
  int64_t offsets = 0, room = 0;

  int64_t bytes() const;  // from the first element to the end of the last
};

// The numbers of rows, columns and summands of a GEMM in each batch: ids of tensors of B int32; 0:
// all.
struct MatmulLengths {
  int64_t M = 0, N = 0, K = 0;
};

struct GraphOperation {
  Operation kind;
  Element compute;
  std::vector<int64_t> inputs;  // x, y, z
  int64_t output;
  int64_t axis = -1;
  MatmulLengths lengths = {};
};

class OperationGraph {
 public:
  // --- tensors; each function returns the id of a new one ---
  int64_t memory(int64_t id, Sizes dims, Sizes strides, Element type);
  int64_t workspace(Sizes dims, Element type);
  int64_t value(float value);

  // --- operations, which run in the order in which they are added ---
  // The output is the tensor `into`, or a new one, which is fp32 and `inside`; its id is returned.
  int64_t matmul(int64_t x, int64_t y, const MatmulLengths& lengths);
  void matmul_into(int64_t x, int64_t y, int64_t into, const MatmulLengths& lengths);
  int64_t reshape(int64_t x, Sizes dims, Sizes strides, Element type);
  int64_t reduce(Operation kind, int64_t x, Sizes dims);
  void reduce_into(Operation kind, int64_t x, int64_t into);
  int64_t pointwise(Operation kind, const std::vector<int64_t>& inputs);
  void pointwise_into(Operation kind, const std::vector<int64_t>& inputs, int64_t into);
  int64_t index(int64_t x, int64_t axis);
  int64_t compare(Operation kind, int64_t x, int64_t y);
  void round(int64_t id, Element type) { at(id).type = type; }  // sets the type of an inside tensor
  // Gives a tensor batches of unequal length, one after another. Does nothing if `offsets` is 0.
  void set_offsets(int64_t id, int64_t offsets, Sizes strides, int64_t room);

  const GraphTensor& tensor(int64_t id) const;
  const std::vector<GraphTensor>& tensors() const { return tensors_; }
  const std::vector<GraphOperation>& operations() const { return operations_; }

 private:
  GraphTensor& at(int64_t id);
  int64_t inside(Sizes dims, Element type);
  std::vector<GraphTensor> tensors_;
  std::vector<GraphOperation> operations_;
  int64_t next_id_ = 100;  // the callers' own ids are smaller
};

Sizes packed_strides(const Sizes& dims);

}  // namespace mtrain::kernels::cuda
