#include "model/head_norms.h"

#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

#include <utility>

namespace mtrain::model {

namespace {
Parameter* add_weight(ParamStore& params, UnitId unit, const spec::TensorSpec& weight,
                      const TensorParallel& tensor, const ops::HeadRange& range) {
  // Each rank normalizes its own heads. Where each head has the same weight, its gradient is a sum
  // over ranks, and so it is of heads that several ranks have.
  ShardSpec shard = tensor.replicated();
  shard.partial_grad = true;
  if (range.as_one) shard.dim = ShardSpec::Dim::rows, shard.sections = sections_of(weight);
  return params.add(unit, part_of(weight, std::move(shard)));
}
}  // namespace

HeadNorms::HeadNorms(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors,
                     const std::string& name, const spec::NormSpec& norm, spec::HeadNorm kind,
                     std::shared_ptr<TensorParallel> tensor, const HeadConfig& heads)
    : tensor_(std::move(tensor)),
      q_{0, heads.A, heads.D, kind == spec::HeadNorm::all_heads},
      k_{heads.A, heads.G, heads.D, q_.as_one},
      eps_(float(norm.eps)),
      plus_one_(norm.plus_one),
      q_norm_(add_weight(params, unit, tensor_of(tensors, name + ".q_norm.weight"), *tensor_, q_)),
      k_norm_(add_weight(params, unit, tensor_of(tensors, name + ".k_norm.weight"), *tensor_, k_)) {
}

ops::NormWeights HeadNorms::weights(const Parameter& p) const {
  return {NormKind::rms, p.value, {}, eps_, plus_one_};
}

ops::SharedRows HeadNorms::shared(const Tensor& sum_2T, int64_t which,
                                  const ops::HeadRange& range) const {
  if (!sum_2T) return {};
  const int64_t T = sum_2T.count() / 2;
  return {sum_2T.flat(which * T, {T}), range.width() * tensor_->size()};
}

Tensor HeadNorms::forward(Step& step, const Tensor& raw_TN, Statistics& statistics) const {
  Stream& stream = step.compute;
  const Tensor qkv_TN = Tensor::empty(stream, raw_TN.shape(), raw_TN.dtype());
  const int64_t T = raw_TN.dim(0), v = (k_.first_head + k_.heads) * k_.D;
  ops::copy_blocks(stream, raw_TN, qkv_TN,
                   {{.from_row = 0,
                     .from_column = v,
                     .to_row = 0,
                     .to_column = v,
                     .rows = T,
                     .columns = raw_TN.dim(1) - v}});
  Tensor sum_2T;
  if (shares_rows()) {
    sum_2T = Tensor::empty(stream, {2 * T}, DType::f32);
    ops::head_norm_sums(stream, raw_TN, q_, sum_2T.flat(0, {T}));
    ops::head_norm_sums(stream, raw_TN, k_, sum_2T.flat(T, {T}));
    tensor_->sum(sum_2T);
  }
  // q comes last: its launch names the entire result, which is complete then.
  statistics.rstd_k =
      ops::head_norm(stream, weights(*k_norm_), raw_TN, qkv_TN, k_, shared(sum_2T, 1, k_));
  statistics.rstd_q =
      ops::head_norm(stream, weights(*q_norm_), raw_TN, qkv_TN, q_, shared(sum_2T, 0, q_));
  return qkv_TN;
}

void HeadNorms::backward(Step& step, const Tensor& raw_TN, const Statistics& statistics,
                         const ops::Written& dqkv_TN) const {
  Stream& stream = step.compute;
  const int64_t T = raw_TN.dim(0);
  Tensor sum_2T;
  if (shares_rows()) {
    sum_2T = Tensor::empty(stream, {2 * T}, DType::f32);
    ops::head_norm_backward_sums(stream, weights(*q_norm_), raw_TN, statistics.rstd_q,
                                 dqkv_TN.plain, q_, sum_2T.flat(0, {T}));
    ops::head_norm_backward_sums(stream, weights(*k_norm_), raw_TN, statistics.rstd_k,
                                 dqkv_TN.plain, k_, sum_2T.flat(T, {T}));
    tensor_->sum(sum_2T);
  }
  ops::head_norm_backward(stream, weights(*q_norm_), raw_TN, statistics.rstd_q, dqkv_TN, q_,
                          vector_grad(stream, *q_norm_), shared(sum_2T, 0, q_));
  ops::head_norm_backward(stream, weights(*k_norm_), raw_TN, statistics.rstd_k, dqkv_TN, k_,
                          vector_grad(stream, *k_norm_), shared(sum_2T, 1, k_));
  step.wgrad.ready(*q_norm_);
  step.wgrad.ready(*k_norm_);
}

}  // namespace mtrain::model
