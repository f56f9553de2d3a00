#include "plan/kernel_workspace.h"

#include <algorithm>

#include "base/matmul_workspace.h"
#include "plan/attention_workspace.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {

// Returns how many of a tp rank's heads each of `ranks` ranks has.
int64_t heads_here(const Layout& l, int64_t heads, int64_t ranks) {
  return std::max<int64_t>(1, heads / l.tp / ranks);
}

// Attention to the full sequences of `ranks` ranks, with a part of the heads of each, and to a
// chunk of these heads at a time.
AttentionWork attention_work(const RunPlan& plan, int64_t ranks, int64_t chunks) {
  const Layout& l = plan.layout;
  const spec::GroupedAttention& attention = plan.model.layer(0).grouped();
  const int64_t rows = l.micro_batch * plan.sample_length / l.cp * ranks;
  const auto element = int64_t(dtype_size(plan.compute_dtype));
  const bool packed = plan.dataset.by_document();
  // cuDNN supports neither fp32 nor capped scores of packed documents.
  const bool cudnn =
      !plan.device.own_attention && element == 2 && !(packed && attention.score_cap > 0);
  // cuDNN computes with these two sizes of heads.
  const bool both = cudnn && attention.head_dim == 192 && attention.value_dim() == 128,
             padded = attention.value_dim() != attention.head_dim && !both;
  return {.rows = rows,
          .keys = rows,
          .sequence = rows / l.micro_batch,
          .A = heads_here(l, attention.heads, ranks) / chunks,
          .G = heads_here(l, attention.kv_heads, ranks) / chunks,
          .D = std::max(attention.head_dim, attention.value_dim()),
          .cudnn = cudnn,
          .fixed_order = plan.device.deterministic,
          .documents = packed,
          .padded = padded ? element : 0};
}

// Attention to the keys of `ranks` ranks: half of the rows at a time if keys are gathered.
AttentionWork block_work(AttentionWork w, int64_t ranks) {
  w.blocks = true, w.gathered = ranks > 1;
  w.cudnn = w.cudnn && !w.documents;  // packs are divided among ranks
  if (w.gathered && !w.documents) w.rows /= 2;
  w.keys *= ranks, w.sequence *= ranks;
  return w;
}

}  // namespace

Count kernel_workspace(const RunPlan& plan, const LayerActivations& layer, bool has_layers) {
  if (plan.device.kind != DeviceKind::cuda) return 0;
  int64_t most = kMatmulWorkspace;
  if (!has_layers) return Count(most);
  const int64_t cp = plan.layout.cp;
  const auto needs = [&](const AttentionWork& w) { most = std::max(most, attention_workspace(w)); };
  // After an all-to-all of heads, attention has full sequences and computes some heads at a time.
  if (layer.uses(ContextMethod::a2a))
    needs(attention_work(plan, cp, plan.head_chunks.a2a));
  else if (cp == 1)
    needs(attention_work(plan, 1, 1));
  if (layer.uses(ContextMethod::p2p) || layer.uses(ContextMethod::a2a_p2p))
    needs(block_work(attention_work(plan, 1, 1), 1));
  if (layer.uses(ContextMethod::all_gather))
    needs(block_work(attention_work(plan, 1, plan.head_chunks.all_gather), cp));
  return Count(most);
}

}  // namespace mtrain::plan
