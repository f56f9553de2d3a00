// The implementations that a model's layers use on this rank. The defaults are those of a single
// rank; lib/parallel/apply_parallelism.cpp replaces them for parallelism and for quantized GEMMs.
#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "base/route_pattern.h"
#include "model/attention_core.h"
#include "model/experts/token_dispatcher.h"
#include "model/latent_core.h"
#include "model/quantizer.h"
#include "model/tensor_parallel.h"

namespace mtrain::model {

struct ModelImpls {
  std::shared_ptr<TensorParallel> tensor = std::make_shared<TensorParallel>();
  // Makes the attention core of a layer; empty: local_attention().
  std::function<std::unique_ptr<AttentionCore>(const HeadConfig&, int64_t layer)> attention_core;
  // Makes what a layer with latent attention uses instead of an attention core; empty: its latents
  // are expanded, and attention_core computes with them.
  std::function<std::unique_ptr<LatentCore>(const LatentConfig&, int64_t layer)> latent_core;
  // Rows of the vocabulary's tables over all ranks of `tensor`; those beyond the vocabulary are
  // padding. 0: the vocabulary's.
  int64_t padded_vocab = 0;
  ExpertShard experts;  // which experts this rank has
  // Whether each expert is divided over the ranks of `tensor`: its outputs are then partial sums,
  // which `token_dispatcher` adds up. Otherwise this rank has whole experts.
  bool divided_experts = false;
  // Makes the dispatcher that brings a layer's tokens to their experts; empty: local_dispatcher().
  std::function<std::unique_ptr<TokenDispatcher>()> token_dispatcher;
  // Whether a shared expert computes in two parts, one while tokens travel to their experts and one
  // while they come back. Otherwise all of it computes while they come back.
  bool shared_expert_overlap = false;
  // Replaces `values`, a sum over this rank's tokens, by the sum over all ranks that share the
  // tokens of a sample. Readers of the result wait for the event. Empty: this rank has all tokens
  // of its samples.
  std::function<Event(Stream& compute, const Tensor& values)> sum_over_tokens;
  // Not null: the linears of the layers [quantized_begin, quantized_end) have quantized GEMMs.
  std::shared_ptr<Quantizer> quantizer;
  int64_t quantized_begin = 0, quantized_end = std::numeric_limits<int64_t>::max();
  std::shared_ptr<Quantizer> quantizer_of(int64_t layer) const {
    return layer >= quantized_begin && layer < quantized_end ? quantizer : nullptr;
  }
  // (layers of the model, experts) in fp32: added to the routers' scores for the choice alone.
  // Absent: nothing is added.
  Tensor router_bias_LE;
  RoutePattern route_pattern = RoutePattern::none;  // what chooses experts instead of the router
  int64_t logits_rows = 0;  // tokens whose logits exist at once; 0: all of a micro-batch
  // The loss sees logits, and gives their gradient, rounded to this type; empty: as the output
  // layer computes them.
  std::optional<DType> logits_dtype;
  bool head_in_fp32 = false;  // the output layer's weight and GEMMs are fp32, whatever others are
};

}  // namespace mtrain::model
