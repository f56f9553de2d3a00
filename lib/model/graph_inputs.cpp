#include "model/graph_inputs.h"

#include <algorithm>

#include "model/step.h"
#include "tensor/upload.h"

namespace mtrain::model {

GraphInputs::GraphInputs(Stream& stream, int64_t max_dropouts)
    : stream_(stream),
      grad_scale_1_{Tensor::from_host<float>(stream, {1}, {0.0f})},
      router_grad_scale_1_{Tensor::from_host<float>(stream, {1}, {0.0f})},
      keys_N_(Tensor::empty(stream, {max_dropouts}, DType::i64, device::MemoryCategory::buffers)) {}

Tensor GraphInputs::dropout_key(const SegmentId& segment) {
  const auto known = std::ranges::find(segments_, segment);
  const int64_t at = known - segments_.begin();
  if (at == keys_N_.dim(0))
    throw RunError(fmt::format("{} drops elements, but there are keys for {} segments only",
                               segment_name(segment), at));
  if (known == segments_.end()) segments_.push_back(segment);
  return keys_N_.flat(at, {1});
}

void GraphInputs::set(Scalar& scalar, float value) {
  if (value != scalar.value) tensor::upload<float>(stream_, scalar.tensor, {value});
  scalar.value = value;
}

void GraphInputs::set(const Values& v) {
  set(grad_scale_1_, v.grad_scale);
  set(router_grad_scale_1_, v.router_grad_scale);
  std::vector<int64_t> keys;
  for (const SegmentId& segment : segments_)
    keys.push_back(int64_t(mtrain::model::dropout_key(v.seed, segment, v.step, v.micro_batch)));
  tensor::upload(stream_, keys_N_, std::move(keys));
}

}  // namespace mtrain::model
