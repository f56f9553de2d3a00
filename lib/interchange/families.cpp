#include "interchange/families.h"

#include <algorithm>

namespace mtrain::interchange {

// All families, in the order in which an export tries them. Each is defined in a file of
// interchange/families/.
#define MT_FAMILIES(X) \
  X(llama)             \
  X(mistral)           \
  X(phi3)              \
  X(qwen2)             \
  X(qwen3)             \
  X(smollm3)           \
  X(olmo2)             \
  X(seed_oss)          \
  X(granite)           \
  X(gemma2)            \
  X(gemma3_text)       \
  X(mixtral)           \
  X(qwen2_moe)         \
  X(qwen3_moe)         \
  X(deepseek_moe)      \
  X(dots1)             \
  X(glm4_moe)          \
  X(deepseek_v2)       \
  X(deepseek_v3)       \
  X(glm4_moe_lite)     \
  X(gpt2)

#define MT_DECLARE(name) Family name();
MT_FAMILIES(MT_DECLARE)

const std::vector<Family>& families() {
#define MT_MAKE(name) name(),
  static const std::vector<Family> all{MT_FAMILIES(MT_MAKE)};
  return all;
}

bool names_predictions(const Family& family, const ModelConfig& m) {
  return m.mtp_num_layers > 0 && !m.mtp_use_repeated_layer && !family.mtp_layers_key.empty();
}

const Family* find_family(std::string_view model_type) {
  const auto at = std::ranges::find_if(families(), [&](const Family& family) {
    return model_type == family.model_type ||
           (!model_type.empty() && model_type == family.other_type);
  });
  return at == families().end() || at->keys.empty() ? nullptr : &*at;
}

}  // namespace mtrain::interchange
