// The attention segment of a block with latent attention (DeepSeek-AI 2024, "DeepSeek-V2"):
//
//   x -> q_down -> norm -> q_up ---------> q, rotated ----------------.
//   x -> kv_down -> norm of the latent --> kv_up -> keys, values ------+-> core -> proj
//                -> the shared elements of the keys, rotated ---------'
//
// Without a rank for queries, one linear computes them from x. All ranks of tensor parallelism
// compute the latents, and each expands them to its own heads. Under sequence parallelism a rank
// computes the latents of its own rows; the linears that expand them gather the rows, which are
// shorter than those of x. The core reads expanded keys and values like those of any attention.
#pragma once
#include <memory>

#include "model/model_impls.h"
#include "model/recompute.h"
#include "model/rotary.h"
#include "model/segment.h"

namespace mtrain::model {

std::unique_ptr<Segment> latent_attention_segment(ParamStore& params, const spec::ModelSpec& model,
                                                  const spec::GroupedAttention& attention,
                                                  int64_t layer, const RotaryTables& rotary,
                                                  const Recompute& recompute,
                                                  const ModelImpls& impls);

}  // namespace mtrain::model
