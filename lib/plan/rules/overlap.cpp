// Rules of overlap: if a feature that the recipe asks for by name is not active, they report why.
#include <algorithm>

#include <fmt/core.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

// Reports every feature that the recipe asks for by name and that is off.
void check_overlap_off(const Recipe& r, const Overlap& overlap, Diagnostics& diagnostics) {
  for (const auto& row : overlap.table) {
    // Other rules refuse the fields of another strategy. fsdp2 reads one of `ddp`.
    const bool other_strategy = row.field.rfind("ddp.", 0) == 0 && row.field != "ddp.nccl_ub" &&
                                r.distributed.strategy == recipe::Strategy::fsdp2;
    if (!other_strategy && !diagnostics.reported(row.field))
      report_inactive(r, row.field, row.off, row.reason, diagnostics);
  }
}

// The settings of the fine-grained 1F1B turn it on. A recipe cannot set them and also turn it off.
void check_fine_grained(const recipe::CommOverlapConfig& c, Diagnostics& diagnostics) {
  struct Setting {
    const char* field;
    bool set;
  };
  const Setting settings[] = {
      {"comm_overlap.overlap_p2p_backward_on_comm_stream", c.overlap_p2p_backward_on_comm_stream},
      {"comm_overlap.overlap_p2p_wgrad_delayed_layer_number",
       c.overlap_p2p_wgrad_delayed_layer_number != 1},
      {"comm_overlap.overlap_p2p_with_transformer_layer_wgrad",
       c.overlap_p2p_with_transformer_layer_wgrad}};
  for (const Setting& setting : settings)
    diagnostics.require(c.fine_grained_1f1b.value_or(true) || !setting.set,
                        {setting.field, "comm_overlap.fine_grained_1f1b"},
                        "is a setting of the fine-grained 1F1B, but fine_grained_1f1b is false",
                        "leave out one of the two");
}

void check_delayed_layers(const Layout& l, const Overlap& o, Diagnostics& diagnostics) {
  const int64_t n = o.overlap_p2p_wgrad_delayed_layer_number;
  if (n == 1 || l.layers_of_stage.empty()) return;
  int64_t fewest = l.layers_of_stage[0];
  for (int64_t layers : l.layers_of_stage) fewest = std::min(fewest, layers);
  diagnostics.require(n <= fewest,
                      {"comm_overlap.overlap_p2p_wgrad_delayed_layer_number", "model.num_layers"},
                      fmt::format("{} layers are to wait, but a chunk has {}", n, fewest),
                      fewest <= 1 ? "leave it at 1" : fmt::format("choose 1 to {}", fewest));
}

void check_preset(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& name = r.comm_overlap.tp_comm_overlap_cfg.preset;
  const recipe::TpOverlapPreset* preset = recipe::find_tp_overlap_preset(name);
  if (!preset) return;
  std::string differences;
  const auto compare = [&](const char* what, auto preset_value, auto own) {
    if (preset_value == own) return;
    differences +=
        fmt::format("{}{} {} (here {})", differences.empty() ? "" : ", ", what, preset_value, own);
  };
  compare("hidden_size", preset->hidden_size, r.model.hidden_size);
  compare("tp_size", preset->tp_size, l.tp);
  compare("micro-batch", preset->micro_batch_size, l.micro_batch);
  compare("seq_length", preset->seq_length, sample_length(r));
  compare("GPU", preset->gpu, enum_name(r.hardware.gpu));
  const bool fp8 = r.mixed_precision.fp8 != recipe::Fp8Format::none;
  const bool fp32 = r.mixed_precision.name == recipe::Precision::fp32;
  compare("precision", preset->precision, std::string_view(fp8 ? "fp8" : fp32 ? "fp32" : "bf16"));
  if (!differences.empty())
    diagnostics.warn("comm_overlap.tp_comm_overlap_cfg",
                     fmt::format("{} was tuned for {}", name, differences),
                     "leave the preset out to take a method per GEMM");
}

// Reports settings that only an inactive feature would read.
void check_ignored(const Recipe& r, const Overlap& o, Diagnostics& diagnostics) {
  const auto ignored = [&](bool here, const char* field, const char* why) {
    if (here) warn_or_refuse(r, field, why, diagnostics);
  };
  ignored(r.comm_overlap.wgrad_deferral_limit > 0 && !o.defer_embedding_wgrad_compute,
          "comm_overlap.wgrad_deferral_limit",
          "is ignored because defer_embedding_wgrad_compute is off");
  ignored(r.ddp.disable_symmetric_registration && !o.registered_gather,
          "ddp.disable_symmetric_registration", "is ignored because ddp.nccl_ub is off");
  ignored(!r.comm_overlap.tp_comm_overlap_cfg.empty() && !o.tp_comm_overlap,
          "comm_overlap.tp_comm_overlap_cfg", "is ignored because tp_comm_overlap is off");
}

}  // namespace

void validate_overlap(const Recipe& r, const Layout& l, const Overlap& o,
                      Diagnostics& diagnostics) {
  const auto& c = r.comm_overlap;
  diagnostics.require(
      !(c.overlap_p2p_comm.value_or(false) && c.batch_p2p_comm.value_or(false)),
      {"comm_overlap.overlap_p2p_comm", "comm_overlap.batch_p2p_comm"},
      "overlap_p2p_comm and batch_p2p_comm exclude each other",
      "keep overlap_p2p_comm with several stages per rank, batch_p2p_comm with one");
  check_fine_grained(c, diagnostics);
  check_overlap_off(r, o, diagnostics);
  check_delayed_layers(l, o, diagnostics);
  if (o.tp_comm_overlap) check_preset(r, l, diagnostics);
  check_ignored(r, o, diagnostics);
}

}  // namespace mtrain::plan
