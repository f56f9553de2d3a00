// DeepSeekMoE (Dai et al. 2024). mtrain reads no folders of this family.
#include "interchange/families/tensor_rows.h"

namespace mtrain::interchange {

namespace {

void deepseek_moe_defaults(ModelConfig& m) {
  m.norm_epsilon = 1e-6;
  m.moe.required_by_family = true;
  m.moe.router_pre_softmax = true;
  m.moe.norm_topk_prob = false;
  m.moe.first_dense_layers = 1;
}

}  // namespace

Family deepseek_moe() { return {.model_type = "deepseek_moe", .defaults = deepseek_moe_defaults}; }

}  // namespace mtrain::interchange
