// comm_overlap.tp_comm_overlap_cfg: how each GEMM of a layer hides the communication of tensor
// parallelism.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class TpOverlapMethod { bulk, ring_exchange, pipeline };
constexpr auto enum_names(TpOverlapMethod) {
  return std::array{EnumName{TpOverlapMethod::bulk, "bulk"},
                    EnumName{TpOverlapMethod::ring_exchange, "ring_exchange"},
                    EnumName{TpOverlapMethod::pipeline, "pipeline"}};
}

struct TpOverlapGemm {
  TpOverlapMethod method = TpOverlapMethod::bulk;
  int64_t num_sm = 16, cga_size = 2, num_splits = 4;
  bool set_sm_margin = true, aggregate = false, atomic_gemm = false, fp8_buf = false;
  // Whether the recipe gives num_sm or set_sm_margin, and cga_size. Defaults have no effect.
  bool num_sm_given = false, cga_size_given = false;
  bool operator==(const TpOverlapGemm&) const = default;
};

inline constexpr std::array<std::string_view, 10> kTpOverlapGemms{
    "qkv_fprop", "qkv_dgrad", "qkv_wgrad", "proj_fprop", "proj_dgrad",
    "fc1_fprop", "fc1_dgrad", "fc1_wgrad", "fc2_fprop",  "fc2_dgrad"};

// Sets `out` to the method and figures of a GEMM that the recipe does not mention. Returns false if
// there is no GEMM of this name.
bool tp_overlap_default(std::string_view gemm, TpOverlapGemm& out);

// Either the name of a preset, or entries for single GEMMs. A GEMM without an entry uses
// tp_overlap_default().
struct TpOverlapConfig {
  std::string preset;
  std::map<std::string, TpOverlapGemm> gemms;
  std::set<std::string> off;  // GEMMs that the recipe sets to none
  bool empty() const { return preset.empty() && gemms.empty() && off.empty(); }
};

// A preset, and the run that it was tuned for.
struct TpOverlapPreset {
  std::string_view name, precision, gpu;
  int64_t hidden_size, tp_size, cp_size, micro_batch_size, seq_length;
  bool lora;
  std::array<TpOverlapGemm, 10> gemms;  // in the order of kTpOverlapGemms
  std::array<bool, 10> present;
};
std::span<const TpOverlapPreset> tp_overlap_presets();
const TpOverlapPreset* find_tp_overlap_preset(std::string_view name);

}  // namespace mtrain::recipe
