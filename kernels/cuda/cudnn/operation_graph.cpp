#include "kernels/cuda/cudnn/operation_graph.h"

#include <algorithm>

#include "base/error.h"

namespace mtrain::kernels::cuda {
namespace {
constexpr size_t kDims = 4;  // cuDNN requires the same number for all tensors of an operation
}

Sizes packed_strides(const Sizes& dims) {
  Sizes strides(dims.size(), 1);
  for (size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

int64_t GraphTensor::bytes() const {
  const int64_t size = type == Element::boolean                        ? 1
                       : type == Element::bf16 || type == Element::f16 ? 2
                                                                       : 4;
  if (offsets != 0) return room * size;
  int64_t last = 0;
  for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return (last + 1) * size;
}

GraphTensor& OperationGraph::at(int64_t id) {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.id == id; });
  MT_CHECK(found != tensors_.end(), "operation graph: no tensor {}", id);
  return *found;
}
const GraphTensor& OperationGraph::tensor(int64_t id) const {
  return const_cast<OperationGraph*>(this)->at(id);
}

int64_t OperationGraph::memory(int64_t id, Sizes dims, Sizes strides, Element type) {
  tensors_.push_back({id, std::move(dims), std::move(strides), type, GraphTensor::Place::memory});
  return id;
}
int64_t OperationGraph::workspace(Sizes dims, Element type) {
  const int64_t id = inside(std::move(dims), type);
  at(id).place = GraphTensor::Place::workspace;
  return id;
}
int64_t OperationGraph::value(float value) {
  const Sizes one(kDims, 1);
  tensors_.push_back({next_id_, one, one, Element::f32, GraphTensor::Place::value, value});
  return next_id_++;
}
int64_t OperationGraph::inside(Sizes dims, Element type) {
  Sizes strides = packed_strides(dims);
  tensors_.push_back(
      {next_id_, std::move(dims), std::move(strides), type, GraphTensor::Place::inside});
  return next_id_++;
}

int64_t OperationGraph::matmul(int64_t x, int64_t y, const MatmulLengths& lengths) {
  Sizes dims = tensor(x).dims;
  const Sizes& other = tensor(y).dims;
  dims.back() = other.back();
  for (size_t i = 0; i + 2 < dims.size(); ++i) dims[i] = std::max(dims[i], other[i]);
  const int64_t into = inside(std::move(dims), Element::f32);
  matmul_into(x, y, into, lengths);
  return into;
}
void OperationGraph::matmul_into(int64_t x, int64_t y, int64_t into, const MatmulLengths& lengths) {
  operations_.push_back({Operation::matmul, Element::f32, {x, y}, into, -1, lengths});
}

int64_t OperationGraph::reshape(int64_t x, Sizes dims, Sizes strides, Element type) {
  const int64_t into = inside(std::move(dims), type);
  at(into).strides = std::move(strides);
  operations_.push_back({Operation::reshape, Element::f32, {x}, into});
  return into;
}

int64_t OperationGraph::reduce(Operation kind, int64_t x, Sizes dims) {
  const int64_t into = inside(std::move(dims), Element::f32);
  reduce_into(kind, x, into);
  return into;
}
void OperationGraph::reduce_into(Operation kind, int64_t x, int64_t into) {
  operations_.push_back({kind, Element::f32, {x}, into});
}

int64_t OperationGraph::pointwise(Operation kind, const std::vector<int64_t>& inputs) {
  const int64_t into = inside(tensor(inputs[0]).dims, Element::f32);
  pointwise_into(kind, inputs, into);
  return into;
}
void OperationGraph::pointwise_into(Operation kind, const std::vector<int64_t>& inputs,
                                    int64_t into) {
  operations_.push_back({kind, Element::f32, inputs, into});
}

int64_t OperationGraph::index(int64_t x, int64_t axis) {
  const int64_t into = inside(tensor(x).dims, Element::i32);
  operations_.push_back({Operation::index, Element::f32, {x}, into, axis});
  return into;
}
int64_t OperationGraph::compare(Operation kind, int64_t x, int64_t y) {
  const int64_t into = inside(tensor(x).dims, Element::boolean);
  operations_.push_back({kind, Element::boolean, {x, y}, into});
  return into;
}

void OperationGraph::set_offsets(int64_t id, int64_t offsets, Sizes strides, int64_t room) {
  if (offsets == 0) return;
  GraphTensor& t = at(id);
  t.offsets = offsets, t.strides = std::move(strides), t.room = room;
}

}  // namespace mtrain::kernels::cuda
