#include "plan/tp_gemm_overlap.h"

#include <algorithm>

#include <fmt/core.h>

#include "recipe/recipe.h"

namespace mtrain {
namespace {

using Method = TpOverlapMethod;

// A product of fewer rows has no more than a few tiles of a matrix unit, and takes little less time
// than one of twice as many.
constexpr int64_t kLeastRows = 64;

struct Product {
  std::string name;  // "qkv_fprop"
  TpOverlapGemm gemm;
  bool asked = false;  // by the recipe, and not by a default
  bool on = true;
  std::string why;
  void off(std::string reason) {
    on = false;
    why = std::move(reason);
  }
};

// As the recipe asks for it.
Product asked_for(const TpOverlapConfig& cfg, size_t index) {
  Product p{.name = std::string(kTpOverlapGemms[index])};
  tp_overlap_default(p.name, p.gemm);
  if (const TpOverlapPreset* preset = find_tp_overlap_preset(cfg.preset)) {
    p.gemm = preset->gemms[index];
    p.asked = true;
    if (!preset->present[index]) p.off("the preset leaves it out");
  } else if (const auto own = cfg.gemms.find(p.name); own != cfg.gemms.end()) {
    p.gemm = own->second;
    p.asked = true;
  } else if (cfg.off.count(p.name)) {
    p.asked = true;
    p.off("switched off");
  }
  return p;
}

// Column-parallel layers gather their inputs, row-parallel ones scatter their outputs.
bool is_column(const Product& p) { return p.name.starts_with("qkv") || p.name.starts_with("fc1"); }
bool is_fprop(const Product& p) { return p.name.ends_with("fprop"); }
bool is_wgrad(const Product& p) { return p.name.ends_with("wgrad"); }
bool follows_gather(const Product& p) {
  return p.gemm.method != Method::bulk && is_column(p) == is_fprop(p);
}

void apply_switches(const CommOverlapConfig& c, Product& p) {
  const auto need = [&](bool on, const char* field) {
    if (p.on && !on) p.off(fmt::format("comm_overlap.{} is false", field));
  };
  if (p.gemm.method == Method::bulk)
    is_wgrad(p) ? need(c.tp_comm_bulk_wgrad, "tp_comm_bulk_wgrad")
                : need(c.tp_comm_bulk_dgrad, "tp_comm_bulk_dgrad");
  else
    follows_gather(p) ? need(c.tp_comm_overlap_ag, "tp_comm_overlap_ag")
                      : need(c.tp_comm_overlap_rs, "tp_comm_overlap_rs");
}

// Chunks that are worth their own product, or as many as are asked for.
void cut(const Layout& l, int64_t rows, Product& p) {
  if (!p.on || p.gemm.method == Method::bulk) return;
  const bool pipeline = p.gemm.method == Method::pipeline;
  if (pipeline && !p.asked)
    p.gemm.num_splits = std::clamp<int64_t>(rows / kLeastRows, 1, p.gemm.num_splits);
  const int64_t chunks = pipeline ? p.gemm.num_splits : l.tp, chunk = rows / chunks;
  p.why = fmt::format("{} chunks of {} rows", chunks, chunk);
  const bool small = chunk < kLeastRows || (pipeline && chunks == 1 && !p.asked);
  if (small && p.asked)
    p.why += fmt::format("; warning: fewer than {} are hardly worth splitting", kLeastRows);
  else if (small)
    p.off(fmt::format("{} rows make {} chunks of {}: fewer than {} are not worth splitting", rows,
                      pipeline ? 2 : chunks, pipeline ? rows / 2 : chunk, kLeastRows));
}

void check_aggregate(const Layout& l, Product& p) {
  if (!p.gemm.aggregate) return;
  const bool ring = p.on && p.gemm.method == Method::ring_exchange && follows_gather(p);
  if (ring && l.tp % 2 == 0 && l.tp > 2) {
    p.why += ", two at a time";
    return;
  }
  p.gemm.aggregate = false;
  if (ring)
    p.why += "; aggregate needs an even tp_size above 2: one at a time";
  else if (p.on)
    p.why += "; aggregate is for a ring that gathers";
}

std::string behind(const Product& p) {
  if (p.gemm.method != Method::bulk) return "";
  return is_wgrad(p) ? "hides the scatter of the input gradient"
                     : "hides the gather of the weight gradient's input";
}

std::string shown(const TpOverlapGemm& gemm) {
  const std::string method(enum_name(gemm.method));
  return gemm.method == Method::pipeline ? fmt::format("{} x{}", method, gemm.num_splits) : method;
}

// Schedules in which a stage's weight gradients come later than its input gradients.
bool splits_backward(const Recipe& r, const Layout& l) {
  const auto kind = r.distributed.pipeline.pp_schedule;
  return l.pp > 1 &&
         (r.comm_overlap.delay_wgrad_compute || r.distributed.pipeline.pp_schedule_csv ||
          kind == PipelineScheduleName::zero_bubble || kind == PipelineScheduleName::v_schedule ||
          kind == PipelineScheduleName::dualpipev);
}

// In which layers nothing is left beside the scatter, for their weight gradients wait longer.
std::string delayed_text(const Recipe& r, const Layout& l, const Product& p) {
  const auto& c = r.comm_overlap;
  const bool whole = c.overlap_p2p_with_transformer_layer_wgrad;
  const int64_t layers = c.overlap_p2p_wgrad_delayed_layer_number;
  const bool delays = whole || layers > 1 || c.overlap_p2p_backward_on_comm_stream;
  const bool attention = p.name.starts_with("qkv") || p.name.starts_with("proj");
  if (!delays || l.stages_per_rank == 1 || !(attention || whole)) return "";
  return layers == 1 ? "; not in a stage's first layer, where it waits for the gradient's sending"
                     : fmt::format(
                           "; not in a stage's first {} layers, where it waits for the "
                           "gradient's sending",
                           layers);
}

}  // namespace

void resolve_tp_gemm_overlap(const Recipe& r, const Layout& l, Overlap& overlap) {
  const auto& c = r.comm_overlap;
  const int64_t rows = l.micro_batch * sample_length(r) / std::max<int64_t>(1, l.cp);
  bool splits_dgrad = false, for_gpus = false;  // of the layer whose weight gradient comes next
  for (size_t i = 0; i < kTpOverlapGemms.size(); ++i) {
    Product p = asked_for(c.tp_comm_overlap_cfg, i);
    const std::string asked = !p.asked ? "auto" : p.on ? shown(p.gemm) : "none";
    apply_switches(c, p);
    cut(l, rows, p);
    if (is_wgrad(p) && p.on && splits_backward(r, l))
      p.off("the schedule puts weight gradients off, and nothing is left beside the scatter");
    if (is_wgrad(p) && splits_dgrad && p.on)
      p.off("the product of the input gradient scatters its own result");
    if (p.on && p.why.empty()) p.why = behind(p);
    if (is_wgrad(p) && p.on) p.why += delayed_text(r, l, p);
    check_aggregate(l, p);
    if (p.on && p.gemm.fp8_buf) p.why += "; without fp8_buf: what travels is bf16";
    for_gpus = for_gpus || (p.asked && p.on);
    splits_dgrad = p.name.ends_with("dgrad") && p.on && p.gemm.method != Method::bulk;
    if (p.on) overlap.tp_products[p.name] = p.gemm;
    overlap.table.push_back({"comm_overlap.tp_comm_overlap_cfg." + p.name, asked,
                             p.on ? shown(p.gemm) : "none", p.why, false, p.on});
  }
  if (for_gpus && r.train.device != DeviceChoice::cuda)
    overlap.table.push_back({"comm_overlap.tp_comm_overlap_cfg.*.num_sm", "-", "none",
                             "num_sm, cga_size and set_sm_margin divide a GPU's multiprocessors; "
                             "this is a CPU"});
}

}  // namespace mtrain
