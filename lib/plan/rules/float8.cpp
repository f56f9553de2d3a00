// Rules of linears with 8-bit GEMMs.
#include <algorithm>

#include <fmt/core.h>

#include "base/gpu_facts.h"
#include "plan/fp8_rows.h"
#include "plan/options/recipe_options.h"
#include "plan/rules/rules.h"
#include "recipe/model_spec.h"

namespace mtrain::plan {
namespace {

using recipe::Fp8Recipe;

// Refuses settings that have no effect without 8-bit GEMMs.
void check_without_float8(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  const auto needs = [&](bool on, const char* field) {
    diagnostics.require(!on, {field, "mixed_precision.fp8"},
                        "is on, but there are no 8-bit GEMMs (mixed_precision.fp8 is none)",
                        "set mixed_precision.fp8: hybrid, or remove it");
  };
  needs(r.debug.emulate_fp8, "debug.emulate_fp8");
  needs(p.first_last_layers_bf16, "mixed_precision.first_last_layers_bf16");
}

void check_device(const Recipe& r, Diagnostics& diagnostics) {
  const bool cpu = r.train.device == recipe::DeviceChoice::cpu;
  const bool emulate = r.debug.emulate_fp8 && r.train.device != recipe::DeviceChoice::cuda;
  diagnostics.require(
      emulate || (!cpu && facts(r.hardware.gpu).fp8_flops > 0),
      {"mixed_precision.fp8", "hardware.gpu", "train.device"},
      fmt::format("{} does not support 8-bit GEMMs",
                  cpu ? "a CPU" : std::string(enum_name(r.hardware.gpu))),
      cpu ? "set train.device: cuda; or debug.emulate_fp8: true, to try what it computes"
          : "remove fp8, or set hardware.gpu to h100 or newer");
}

void check_history(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  diagnostics.require(
      p.fp8_recipe == Fp8Recipe::delayed ||
          (p.fp8_amax_history_len == 1 &&
           p.fp8_amax_compute_algo == recipe::Fp8AmaxChoice::most_recent),
      {"mixed_precision.fp8_amax_history_len", "mixed_precision.fp8_amax_compute_algo",
       "mixed_precision.fp8_recipe"},
      fmt::format("fp8_recipe {} keeps no history of maxima", enum_name(p.fp8_recipe)),
      "set mixed_precision.fp8_recipe: delayed, or remove them");
}

// Tensor cores of compute capability 9 take scales of 128 numbers, later ones scales of 32.
void check_block_device(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  const GpuFacts& gpu = facts(r.hardware.gpu);
  const int capability = gpu.compute_capability;
  if (r.train.device == recipe::DeviceChoice::cpu || gpu.fp8_flops == 0) return;  // check_device
  if (r.debug.emulate_fp8 && r.train.device != recipe::DeviceChoice::cuda) return;
  const auto needs = [&](bool ok, const char* what, const char* hint) {
    diagnostics.require(ok, {"mixed_precision.fp8_recipe", "hardware.gpu"},
                        fmt::format("{} needs {}, not {}", enum_name(p.fp8_recipe), what,
                                    enum_name(r.hardware.gpu)),
                        hint);
  };
  if (p.fp8_recipe == Fp8Recipe::blockwise)
    needs(capability == 9, "a GPU of compute capability 9 (h100, h200)",
          "set mixed_precision.fp8_recipe: mxfp8, or hardware.gpu to what the run has");
  if (p.fp8_recipe == Fp8Recipe::mxfp8)
    needs(capability >= 10, "a GPU of compute capability 10 or newer (b200, b300, gb200, gb300)",
          "set mixed_precision.fp8_recipe: blockwise, or hardware.gpu to what the run has");
}

// Forward reads a weight along its rows and backward along its columns. One scale, and a square
// block, serve both. Scales of 32 neighbours do not: each direction has other 8-bit elements.
void check_gather(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  diagnostics.require(
      !p.fp8_param_gather || p.fp8_recipe != Fp8Recipe::mxfp8,
      {"mixed_precision.fp8_param_gather", "mixed_precision.fp8_recipe"},
      "mxfp8 quantizes a weight differently for forward and for backward, so that both forms would "
      "travel: as many bytes as in bf16",
      "set mixed_precision.fp8_param_gather: false, or fp8_recipe: tensorwise or delayed");
}

bool in_blocks(const Recipe& r) { return !linear_formats(r.mixed_precision).input.outer_scale(); }

// The widths of latent attention's linears. `multiple` checks one, as in check_sizes().
template <class Multiple>
void check_latents(const Recipe& r, int64_t of, const Multiple& multiple) {
  const auto& m = r.model;
  const int64_t heads = m.num_attention_heads / std::max<int64_t>(1, r.distributed.tp_size),
                rank = m.kv_lora_rank, first = rank + m.qk_rope_head_dim;
  const auto use = [&](int64_t n) { return fmt::format("use {}", nearest_multiples(n, of)); };
  const auto of_heads = [&](const char* field, const char* what, int64_t size) {
    multiple(field, what, heads * size, "change the heads, their sizes or distributed.tp_size");
  };
  if (const int64_t q_rank = m.q_lora_rank.value_or(0); q_rank > 0)
    multiple("model.q_lora_rank", "q_lora_rank", q_rank, use(q_rank));
  multiple("model.kv_lora_rank", "kv_lora_rank", rank, use(rank));
  if (rank % of == 0)
    multiple("model.qk_rope_head_dim", "kv_lora_rank + qk_rope_head_dim", first,
             use(m.qk_rope_head_dim));
  of_heads("model.qk_nope_head_dim", "the width of queries", m.head_dim());
  // With the widths above, this one is a multiple only if that of the values alone is.
  of_heads("model.v_head_dim", "the width of keys without a position and values",
           m.qk_nope_head_dim + m.v_head_dim);
}

void check_sizes(const Recipe& r, Diagnostics& diagnostics) {
  const auto& m = r.model;
  const bool blocks = in_blocks(r);
  const int64_t of = linear_formats(r.mixed_precision).input.row_multiple();
  const int64_t tp = std::max<int64_t>(1, r.distributed.tp_size), D = m.head_dim();
  const char* products = blocks ? "8-bit GEMMs with scales of blocks" : "8-bit GEMMs";
  // `legal`: a hint, such as the nearest legal values of the field.
  const auto multiple = [&](const char* field, const char* what, int64_t n,
                            const std::string& legal) {
    diagnostics.require(
        n % of == 0, {field, "mixed_precision.fp8", "mixed_precision.fp8_recipe"},
        fmt::format("{} need {} of a rank to be a multiple of {}, not {}", products, what, of, n),
        fmt::format("{}, or remove mixed_precision.fp8", legal));
  };
  const auto use = [](int64_t value, int64_t step) {
    return fmt::format("use {}", nearest_multiples(value, step));
  };
  const int64_t q = m.num_attention_heads / tp * D,
                kv = std::max<int64_t>(1, m.kv_heads() / tp) * D;
  multiple("model.hidden_size", "hidden_size", m.hidden_size, use(m.hidden_size, of));
  const auto width = [&](const char* field, const char* what, int64_t n, int64_t ranks) {
    multiple(field, what, n / ranks, use(n, of * ranks));
  };
  const spec::ModelSpec model = recipe::model_spec(m);
  const bool dense = model.dense_mlp(), experts = model.experts();
  if (dense) width("model.ffn_hidden_size", "ffn_hidden_size", m.ffn_size(), tp);
  if (experts)
    width(r.given("model.moe.ffn_hidden_size") ? "model.moe.ffn_hidden_size"
                                               : "model.ffn_hidden_size",
          "the experts' ffn_hidden_size", m.moe.ffn_hidden_size.value_or(m.ffn_size()),
          std::max<int64_t>(1, expert_tp(r)));
  if (experts && m.moe.shared_expert_ffn_hidden_size)
    width("model.moe.shared_expert_ffn_hidden_size", "the shared expert's ffn_hidden_size",
          *m.moe.shared_expert_ffn_hidden_size, tp);
  if (m.multi_latent_attention) return check_latents(r, of, multiple);
  multiple("model.num_attention_heads", "heads times their size", q,
           "change the heads or model.kv_channels");
  if (q % of != 0) return;
  // A rank has its queries, keys and values in one matrix. Under tp it has a part of each of the
  // three, and a block must not reach from one part into the next.
  if (blocks && tp > 1)
    multiple("model.num_query_groups", "the width of keys", kv,
             "change the groups, model.kv_channels or distributed.tp_size");
  else
    multiple("model.num_query_groups", "the width of queries, keys and values", q + 2 * kv,
             "change the groups or model.kv_channels");
}

void check_routed_experts(const Recipe& r, Diagnostics& diagnostics) {
  diagnostics.require(
      !in_blocks(r) || r.model.moe.num_experts == 0,
      {"mixed_precision.fp8_recipe", "model.moe.num_experts"},
      fmt::format("{} is not supported in models with experts: the GEMMs of experts have one scale "
                  "for all their rows, not one for each block",
                  enum_name(r.mixed_precision.fp8_recipe)),
      "set mixed_precision.fp8_recipe: tensorwise or delayed");
}

// Under sequence parallelism the first linears of latent attention, and that of multi-token
// prediction, multiply a rank's own rows. resolve_tp_gemm_overlap() decides about chunks of rows.
void check_tokens(const Recipe& r, Diagnostics& diagnostics) {
  const int64_t of = fp8_rows_multiple(r);
  if (of == 1 || data_form(r) == recipe::DataForm::rows) return;  // rows are padded
  const bool own_rows = r.distributed.sequence_parallel &&
                        (r.model.multi_latent_attention || r.model.mtp_num_layers > 0);
  const int64_t parts = std::max<int64_t>(1, r.distributed.cp_size) *
                        (own_rows ? std::max<int64_t>(1, r.distributed.tp_size) : 1),
                S = sample_length(r);
  diagnostics.require(S % parts != 0 || S / parts % of == 0,
                      {"dataset.seq_length", "mixed_precision.fp8_recipe"},
                      fmt::format("blockwise needs a rank's part of a sample to be a multiple of "
                                  "{} tokens, not {}",
                                  of, S / parts),
                      fmt::format("use {}", nearest_multiples(S, of * parts)));
}

void check_margin(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  if (in_blocks(r) && p.fp8_margin != 0)
    diagnostics.warn("mixed_precision.fp8_margin",
                     fmt::format("is ignored: {} computes each scale from its own block",
                                 enum_name(p.fp8_recipe)),
                     "remove it");
}

void check_bf16_layers(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  if (!p.first_last_layers_bf16) {
    for (const char* field : {"mixed_precision.num_layers_at_start_in_bf16",
                              "mixed_precision.num_layers_at_end_in_bf16"})
      if (r.given(field))
        diagnostics.warn(field, "is ignored because first_last_layers_bf16 is off",
                         "set mixed_precision.first_last_layers_bf16: true, or remove it");
    return;
  }
  diagnostics.require(
      p.fp8_recipe != Fp8Recipe::delayed,
      {"mixed_precision.first_last_layers_bf16", "mixed_precision.fp8_recipe"},
      "delayed scales are kept for all layers: none of them can be left in bf16",
      "set mixed_precision.fp8_recipe: tensorwise, or first_last_layers_bf16: false");
  const int64_t layers = r.model.num_layers,
                kept = p.num_layers_at_start_in_bf16 + p.num_layers_at_end_in_bf16;
  diagnostics.require(
      kept <= layers,
      {"mixed_precision.num_layers_at_start_in_bf16", "mixed_precision.num_layers_at_end_in_bf16",
       "model.num_layers"},
      fmt::format("{} first and {} last layers in bf16 are more than the model's {} layers",
                  p.num_layers_at_start_in_bf16, p.num_layers_at_end_in_bf16, layers),
      fmt::format("choose counts whose sum is at most {}", layers));
  if (kept == layers)
    diagnostics.warn("mixed_precision.first_last_layers_bf16",
                     fmt::format("leaves none of the {} layers in 8 bits", layers),
                     "lower the counts, or remove mixed_precision.fp8");
}

}  // namespace

void validate_float8(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  if (p.fp8 == recipe::Fp8Format::none) return check_without_float8(r, diagnostics);
  diagnostics.require(p.name != recipe::Precision::fp32,
                      {"mixed_precision.fp8", "mixed_precision.name"},
                      "8-bit GEMMs need bf16_mixed", "set mixed_precision.name");
  check_device(r, diagnostics);
  check_block_device(r, diagnostics);
  check_gather(r, diagnostics);
  check_history(r, diagnostics);
  check_routed_experts(r, diagnostics);
  check_sizes(r, diagnostics);
  check_tokens(r, diagnostics);
  check_margin(r, diagnostics);
  check_bf16_layers(r, diagnostics);
}

}  // namespace mtrain::plan
