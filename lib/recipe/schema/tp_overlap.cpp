// Presets of tensor-parallel overlap, each tuned for one model size on one GPU. The figures are
// those of Megatron-Bridge's presets with the same names.
#include "recipe/schema/tp_overlap.h"

#include <algorithm>

namespace mtrain::recipe {
namespace {

enum Flags { kPlain = 0, kAggregate = 1, kMargin = 2, kCga2 = 4, k8Bit = 8 };

struct Entry {
  TpOverlapGemm gemm;
  bool present = true;
};

constexpr Entry bulk(int num_sm) {
  return {{.method = TpOverlapMethod::bulk, .num_sm = num_sm, .set_sm_margin = false}};
}
constexpr Entry pipeline(int num_sm, int flags = kPlain) {
  return {{.method = TpOverlapMethod::pipeline, .num_sm = num_sm, .fp8_buf = (flags & k8Bit) != 0}};
}
constexpr Entry ring(int flags = kPlain) {
  return {{.method = TpOverlapMethod::ring_exchange,
           .num_sm = 1,
           .cga_size = flags & kCga2 ? 2 : 1,
           .set_sm_margin = (flags & kMargin) != 0,
           .aggregate = (flags & kAggregate) != 0,
           .fp8_buf = (flags & k8Bit) != 0}};
}
constexpr Entry none() { return {{}, false}; }

constexpr TpOverlapPreset make(std::string_view name, std::string_view precision,
                               std::string_view gpu, int64_t hidden, int64_t tp, int64_t cp,
                               int64_t micro_batch, int64_t seq, bool lora,
                               const std::array<Entry, 10>& entries) {
  TpOverlapPreset preset{name, precision, gpu, hidden, tp, cp, micro_batch, seq, lora, {}, {}};
  for (size_t i = 0; i < entries.size(); ++i) {
    preset.gemms[i] = entries[i].gemm;
    preset.gemms[i].num_sm_given = preset.gemms[i].cga_size_given = true;
    preset.present[i] = entries[i].present;
  }
  return preset;
}

// The entries of a preset have the order of kTpOverlapGemms: qkv forward, dgrad, wgrad; proj
// forward, dgrad; fc1 as qkv; fc2 as proj.
constexpr std::array kPresets{
    make("userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192", "bf16", "h100", 8192, 4, 1, 1, 8192,
         false,
         {ring(), bulk(4), bulk(24), pipeline(24), ring(), ring(), bulk(2), bulk(4), pipeline(16),
          ring()}),
    make("userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192", "fp8", "h100", 8192, 4, 1, 1, 8192,
         false,
         {ring(), bulk(4), bulk(24), ring(kMargin), ring(), ring(), bulk(2), bulk(4), ring(kMargin),
          ring()}),
    make("userbuffers_bf16_b200_h8192_tp2_mbs1_seqlen8192", "bf16", "b200", 8192, 2, 1, 1, 8192,
         false,
         {ring(), bulk(16), bulk(24), pipeline(32), ring(), ring(), bulk(2), bulk(4), pipeline(16),
          ring()}),
    make("userbuffers_fp8_b200_h8192_tp2_mbs1_seqlen8192", "fp8", "b200", 8192, 2, 1, 1, 8192,
         false,
         {ring(), bulk(4), bulk(24), ring(kMargin), ring(), ring(), bulk(2), bulk(4), ring(kMargin),
          ring()}),
    make("userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192", "bf16", "h100", 16384, 8, 2, 1,
         8192, false,
         {ring(), bulk(2), bulk(24), pipeline(24), ring(), ring(), bulk(2), bulk(2), pipeline(8),
          ring()}),
    make("userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192", "fp8", "h100", 16384, 8, 2, 1, 8192,
         false,
         {ring(), bulk(2), bulk(24), ring(kMargin), ring(), ring(), bulk(2), bulk(2), ring(kMargin),
          ring()}),
    make("userbuffers_bf16_b200_h16384_tp4_cp2_mbs1_seqlen8192", "bf16", "b200", 16384, 4, 2, 1,
         8192, false,
         {ring(), bulk(8), bulk(24), pipeline(32), ring(), ring(), bulk(2), bulk(2), pipeline(8),
          ring()}),
    make("userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192", "fp8", "b200", 16384, 4, 2, 1, 8192,
         false,
         {ring(), bulk(8), bulk(32), ring(kMargin), ring(), ring(), bulk(2), bulk(8), ring(kMargin),
          ring()}),
    make(
        "userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora", "fp8", "h100", 8192, 2, 1, 1, 4096,
        true,
        {ring(kMargin), bulk(2), none(), ring(kMargin | kCga2 | k8Bit), ring(kMargin),
         ring(kMargin), pipeline(16, k8Bit), none(), ring(kMargin | kCga2 | k8Bit), ring(kMargin)}),
    make("userbuffers_fp8_h100_h16384_tp4_mbs1_seqlen2048_lora", "fp8", "h100", 16384, 4, 1, 1,
         2048, true,
         {ring(kAggregate), bulk(2), none(), pipeline(32, k8Bit), ring(kAggregate),
          ring(kAggregate), pipeline(16, k8Bit), none(), pipeline(16, k8Bit), ring(kAggregate)}),
    make("userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen2048", "bf16", "h100", 6144, 2, 1, 2, 2048,
         false,
         {ring(), bulk(8), bulk(16), pipeline(16), ring(), ring(), bulk(4), bulk(16), pipeline(24),
          ring()}),
    make("userbuffers_fp8_h100_h6144_tp2_mbs2_seqlen2048", "fp8", "h100", 6144, 2, 1, 2, 2048,
         false,
         {ring(), bulk(8), bulk(16), pipeline(16, k8Bit), ring(), ring(), bulk(4), bulk(16),
          pipeline(24, k8Bit), ring()}),
    make("userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048", "bf16", "h100", 12288, 4, 1, 1, 2048,
         false,
         {ring(), bulk(4), bulk(4), pipeline(24), ring(), ring(), bulk(2), bulk(4), ring(kMargin),
          ring()}),
    make("userbuffers_fp8_h100_h12288_tp4_mbs1_seqlen2048", "fp8", "h100", 12288, 4, 1, 1, 2048,
         false,
         {ring(), bulk(4), bulk(4), ring(kMargin), ring(), ring(), bulk(2), bulk(4), ring(kMargin),
          ring()}),
    make("userbuffers_bf16_b200_h12288_tp4_mbs1_seqlen2048", "bf16", "b200", 12288, 4, 1, 1, 2048,
         false,
         {ring(), bulk(4), bulk(16), ring(kMargin), ring(), ring(), bulk(2), bulk(8), ring(kMargin),
          ring()}),
    make("userbuffers_fp8_b200_h12288_tp4_mbs1_seqlen2048", "fp8", "b200", 12288, 4, 1, 1, 2048,
         false,
         {ring(), bulk(4), bulk(16), ring(kMargin), ring(), ring(), bulk(2), bulk(8), ring(kMargin),
          ring()}),
    make("userbuffers_bf16_b200_h6144_tp2_mbs1_seqlen4096", "bf16", "b200", 6144, 2, 1, 1, 4096,
         false,
         {ring(), bulk(8), bulk(32), ring(kMargin), ring(), ring(), bulk(2), bulk(8), ring(kMargin),
          ring()}),
    make("userbuffers_bf16_b200_h18432_tp8_mbs1_seqlen4096", "bf16", "b200", 18432, 8, 1, 1, 4096,
         false,
         {ring(), bulk(8), bulk(32), ring(kMargin), ring(), ring(), bulk(2), bulk(8), pipeline(24),
          ring()}),
    make("userbuffers_fp8_b200_h18432_tp8_mbs1_seqlen4096", "fp8", "b200", 18432, 8, 1, 1, 4096,
         false,
         {ring(), bulk(8), bulk(32), ring(kMargin), ring(), ring(), bulk(2), bulk(8), ring(kMargin),
          ring()})};

}  // namespace

bool tp_overlap_default(std::string_view gemm, TpOverlapGemm& out) {
  if (gemm == "qkv_fprop" || gemm == "fc1_fprop" || gemm == "proj_dgrad" || gemm == "fc2_dgrad")
    out = ring().gemm;
  else if (gemm == "proj_fprop" || gemm == "fc2_fprop")
    out = pipeline(16).gemm;
  else if (std::find(kTpOverlapGemms.begin(), kTpOverlapGemms.end(), gemm) != kTpOverlapGemms.end())
    out = {};  // bulk
  else
    return false;
  return true;
}

std::span<const TpOverlapPreset> tp_overlap_presets() { return kPresets; }

const TpOverlapPreset* find_tp_overlap_preset(std::string_view name) {
  for (const auto& preset : kPresets)
    if (preset.name == name) return &preset;
  return nullptr;
}

}  // namespace mtrain::recipe
