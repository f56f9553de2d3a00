// Decides which communication hides behind which compute. The table has a row for each overlap
// feature: what the recipe asks for, what takes effect, and why.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/gemm_overlap.h"
#include "plan/layout.h"
#include "recipe/schema/tp_overlap.h"

namespace mtrain::recipe {
struct CommOverlapConfig;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct OverlapRow {
  // Why a feature that the recipe asks for by name is not active. `idle`: a size leaves it nothing
  // to hide (tp_size 1, one stage, one data-parallel rank). This is only a warning, unless
  // debug.strict is set, so one recipe serves every size. `contradicts`: another setting excludes
  // it. `part_of_preset`: a preset asks for it; the table has a row, but there is no warning.
  enum class Off { no, part_of_preset, idle, contradicts };

  std::string field;      // "comm_overlap.tp_comm_overlap"
  std::string asked;      // "auto", "true", "4"
  std::string effective;  // "true", "134217728"
  std::string reason;
  Off off = Off::no;    // `no` also if the recipe does not ask for it by name
  bool active = false;  // the feature hides communication in this run
};

struct Overlap {
  bool tp_comm_overlap = false;
  TpGemmOverlap tp_gemm_overlap;  // all `none` without tp_comm_overlap
  bool overlap_p2p_comm = false, batch_p2p_comm = false;
  bool overlap_grad_reduce = false, overlap_param_gather = false;
  bool overlap_param_gather_with_optimizer_step = false, align_param_gather = false;
  bool fp8_param_gather = false;
  // Whether the memory of gathered parameters is registered, and whether with symmetric windows.
  bool registered_gather = false, symmetric_windows = false;
  int64_t bucket_size = 0;  // parameters
  bool cp_overlap = false;
  bool shared_expert_overlap = false;
  int64_t moe_dispatch_chunks = 1;
  bool defer_embedding_wgrad_compute = false;
  bool fine_grained_1f1b = false;
  bool overlap_p2p_backward_on_comm_stream = false;
  bool overlap_p2p_with_transformer_layer_wgrad = false;
  int64_t overlap_p2p_wgrad_delayed_layer_number = 1;
  bool overlap_moe_expert_parallel_comm = false, delay_wgrad_compute = false;
  int64_t cuda_device_max_connections = 32, layernorm_sm_margin = 0, gemm_sm_margin = 0;
  bool programmatic_dependent_launch = false;
  std::vector<OverlapRow> table;  // a row per feature, in the order above
};

// Whether the recipe sets one of the three overlap_p2p_* settings of the fine-grained 1F1B.
bool asks_for_fine_grained(const recipe::CommOverlapConfig& asked);

// Decides every `auto`, and turns off what cannot be active. This is a pure function of the recipe
// and the layout.
Overlap resolve_overlap(const recipe::Recipe& recipe, const Layout& layout);

}  // namespace mtrain::plan
