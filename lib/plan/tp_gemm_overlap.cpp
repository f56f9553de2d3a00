#include "plan/tp_gemm_overlap.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/core.h>

#include "base/error.h"
#include "plan/fp8_rows.h"
#include "plan/recipe_schedule.h"
#include "recipe/model_spec.h"
#include "recipe/recipe.h"

namespace mtrain::plan {
namespace {

using Method = recipe::TpOverlapMethod;

// A GEMM of fewer rows fills only a few tiles of a matrix unit. It takes almost as long as a GEMM
// of twice as many rows.
constexpr int64_t kMinRows = 64;

// A GEMM in a pass, and its key in the recipe's tp_comm_overlap_cfg. Only this file of the plan
// reads the keys. proj and fc2 have no key for wgrad, which has nothing to hide.
struct GemmKey {
  std::string_view name;
  LayerGemm gemm;
  Pass pass;
};
constexpr std::array kGemmKeys{GemmKey{"qkv_fprop", LayerGemm::qkv, Pass::fprop},
                               GemmKey{"qkv_dgrad", LayerGemm::qkv, Pass::dgrad},
                               GemmKey{"qkv_wgrad", LayerGemm::qkv, Pass::wgrad},
                               GemmKey{"proj_fprop", LayerGemm::proj, Pass::fprop},
                               GemmKey{"proj_dgrad", LayerGemm::proj, Pass::dgrad},
                               GemmKey{"fc1_fprop", LayerGemm::fc1, Pass::fprop},
                               GemmKey{"fc1_dgrad", LayerGemm::fc1, Pass::dgrad},
                               GemmKey{"fc1_wgrad", LayerGemm::fc1, Pass::wgrad},
                               GemmKey{"fc2_fprop", LayerGemm::fc2, Pass::fprop},
                               GemmKey{"fc2_dgrad", LayerGemm::fc2, Pass::dgrad}};
static_assert(std::ranges::equal(kGemmKeys, recipe::kTpOverlapGemms, {}, &GemmKey::name),
              "a preset lists its GEMMs in the order of kTpOverlapGemms");

using Off = OverlapRow::Off;

struct Choice {
  GemmKey key;
  recipe::TpOverlapGemm gemm;
  bool asked = false;  // the recipe names this GEMM or a preset
  bool named = false;  // the recipe names this GEMM
  bool on = true;
  Off row_off = Off::no;
  std::string why;
  void off(std::string reason, Off kind = Off::no) {
    on = false;
    why = std::move(reason);
    if (named) row_off = kind;
  }
  bool is_wgrad() const { return key.pass == Pass::wgrad; }
  bool in_attention() const { return key.gemm == LayerGemm::qkv || key.gemm == LayerGemm::proj; }
  // Column-parallel linears gather their inputs, row-parallel ones scatter their outputs.
  bool column_parallel() const { return key.gemm == LayerGemm::qkv || key.gemm == LayerGemm::fc1; }
  bool follows_gather() const {
    return gemm.method != Method::bulk && column_parallel() == (key.pass == Pass::fprop);
  }
};

// Returns what the recipe asks for, before any size is considered.
Choice asked_for(const recipe::TpOverlapConfig& cfg, size_t index) {
  Choice c{.key = kGemmKeys[index]};
  const std::string name(c.key.name);
  tp_overlap_default(name, c.gemm);
  if (const recipe::TpOverlapPreset* preset = recipe::find_tp_overlap_preset(cfg.preset)) {
    c.gemm = preset->gemms[index];
    c.asked = true;
    if (!preset->present[index]) c.off("the preset leaves it out");
  } else if (const auto own = cfg.gemms.find(name); own != cfg.gemms.end()) {
    c.gemm = own->second;
    c.asked = c.named = true;
  } else if (cfg.off.count(name)) {
    c.asked = true;
    c.off("switched off");
  }
  return c;
}

void apply_switches(const recipe::CommOverlapConfig& cfg, Choice& c) {
  const auto need = [&](bool on, const char* field) {
    if (c.on && !on) c.off(fmt::format("comm_overlap.{} is false", field), Off::contradicts);
  };
  if (c.gemm.method == Method::bulk)
    c.is_wgrad() ? need(cfg.tp_comm_bulk_wgrad, "tp_comm_bulk_wgrad")
                 : need(cfg.tp_comm_bulk_dgrad, "tp_comm_bulk_dgrad");
  else
    c.follows_gather() ? need(cfg.tp_comm_overlap_ag, "tp_comm_overlap_ag")
                       : need(cfg.tp_comm_overlap_rs, "tp_comm_overlap_rs");
}

// Chooses as many chunks as are worth a GEMM each, or as many as the recipe asks for.
void choose_chunks(const Recipe& r, const Layout& l, int64_t rows, Choice& c) {
  if (!c.on || c.gemm.method == Method::bulk) return;
  const bool pipeline = c.gemm.method == Method::pipeline;
  // A pipeline divides the rows of a rank into parts of a multiple of `unit`.
  const int64_t own = std::max<int64_t>(1, rows / l.tp), unit = std::gcd(own, fp8_rows_multiple(r));
  if (pipeline && c.asked && own / unit < c.gemm.num_splits) {
    c.gemm.num_splits = own / unit;
    if (own == unit) return c.off(fmt::format("{} rows make one chunk", own), Off::idle);
  }
  if (pipeline && !c.asked)
    c.gemm.num_splits = std::clamp<int64_t>(rows / kMinRows, 1, c.gemm.num_splits);
  const int64_t chunks = pipeline ? c.gemm.num_splits : l.tp, chunk = rows / chunks;
  c.why = fmt::format("{} chunks of {} rows", chunks, chunk);
  const bool small = chunk < kMinRows || (pipeline && chunks == 1 && !c.asked);
  if (small && c.asked)
    c.why += fmt::format("; fewer than {} are hardly worth it", kMinRows);
  else if (small)
    c.off(fmt::format("{} rows make {} chunks of {}: fewer than {} are not worth splitting", rows,
                      pipeline ? 2 : chunks, pipeline ? rows / 2 : chunk, kMinRows));
}

// Whether a ring sends the chunks of two ranks at once, if the recipe asks for it.
bool can_aggregate(const Layout& l, const Choice& c) {
  return c.follows_gather() && l.tp % 2 == 0 && l.tp > 2;
}

// A ring's chunk is the rows of a rank, or of two. A pipeline divides rows where the number allows.
void check_ring_rows(const Recipe& r, const Layout& l, int64_t rows, Choice& c) {
  const int64_t ranks = c.gemm.aggregate && can_aggregate(l, c) ? 2 : 1;
  const int64_t of = fp8_rows_multiple(r), chunk = ranks * (rows / l.tp);
  if (!c.on || c.gemm.method != Method::ring_exchange || of == 1 ||
      data_form(r) == recipe::DataForm::rows || chunk % of == 0)
    return;
  c.off(fmt::format("fp8_recipe blockwise needs chunks of a multiple of {} tokens, not {}", of,
                    chunk),
        Off::contradicts);
}

// Drops `aggregate` if it has no effect, and returns the reason. Returns "" if it has an effect or
// is not asked for.
std::string drop_aggregate(const Layout& l, Choice& c) {
  if (!c.gemm.aggregate) return "";
  const bool ring = c.on && c.gemm.method == Method::ring_exchange && c.follows_gather();
  if (ring && can_aggregate(l, c)) {
    c.why += ", two at a time";
    return "";
  }
  c.gemm.aggregate = false;
  return ring ? "it needs an even tp_size above 2" : "it is for a ring that gathers";
}

// Describes the communication that a bulk GEMM hides; empty for other methods.
std::string hidden_text(const Choice& c) {
  if (c.gemm.method != Method::bulk) return "";
  return c.is_wgrad() ? "hides a scatter of gradients" : "hides the gather for wgrad";
}

std::string shown(const recipe::TpOverlapGemm& gemm) {
  const std::string method(enum_name(gemm.method));
  return gemm.method == Method::pipeline ? fmt::format("{} x{}", method, gemm.num_splits) : method;
}

// Whether the schedule computes a stage's weight gradients later than its input gradients.
bool splits_backward(const Recipe& r, const Layout& l) {
  const auto& pipeline = r.distributed.pipeline;
  return l.pp > 1 && (r.comm_overlap.delay_wgrad_compute || pipeline.pp_schedule_csv ||
                      schedule::schedule_kind(pipeline.pp_schedule).wgrads !=
                          schedule::WgradTiming::with_input_gradients);
}

// Whether some layer has the linears fc1 and fc2, in an MLP or in a shared expert. Routed experts
// have their own GEMMs, without chunks of rows.
bool has_mlp(const Recipe& r) {
  if (r.model.moe.num_experts == 0 || r.model.moe.shared_expert_ffn_hidden_size) return true;
  return recipe::model_spec(r.model).dense_mlp();
}

// Names the layers in which no weight gradient hides the scatter, because their weight gradients
// run later.
std::string delayed_text(const Recipe& r, const Layout& l, const Choice& c) {
  const auto& cfg = r.comm_overlap;
  const bool whole = cfg.overlap_p2p_with_transformer_layer_wgrad;
  const int64_t layers = cfg.overlap_p2p_wgrad_delayed_layer_number;
  const bool delays = asks_for_fine_grained(cfg) || cfg.fine_grained_1f1b.value_or(false);
  if (!delays || l.stages_per_rank == 1 || !(c.in_attention() || whole)) return "";
  return layers == 1 ? "; not in a stage's first layer, where it waits until the gradient is sent"
                     : fmt::format(
                           "; not in a stage's first {} layers, where it waits until the "
                           "gradient is sent",
                           layers);
}

// Returns how many multiprocessors of a GPU the GEMM leaves to the communication beside it, if the
// recipe gives the number; 0: launch.gemm_sm_margin.
int64_t sm_margin(const Choice& c) {
  return c.on && c.asked && c.gemm.num_sm_given && c.gemm.set_sm_margin ? c.gemm.num_sm : 0;
}

GemmOverlap::Method gemm_method(recipe::TpOverlapMethod method) {
  switch (method) {
    case recipe::TpOverlapMethod::bulk: return GemmOverlap::Method::bulk;
    case recipe::TpOverlapMethod::ring_exchange: return GemmOverlap::Method::ring_exchange;
    case recipe::TpOverlapMethod::pipeline: return GemmOverlap::Method::pipeline;
  }
  throw BugError("tp_comm_overlap_cfg's method");
}

}  // namespace

void resolve_tp_gemm_overlap(const Recipe& r, const Layout& l, Overlap& overlap) {
  const auto& cfg = r.comm_overlap;
  const int64_t rows = l.micro_batch * sample_length(r) / std::max<int64_t>(1, l.cp);
  const std::string section = "comm_overlap.tp_comm_overlap_cfg";
  bool unused_num_sm = false, cga_size = false;
  for (size_t i = 0; i < kGemmKeys.size(); ++i) {
    Choice c = asked_for(cfg.tp_comm_overlap_cfg, i);
    const std::string asked = !c.asked ? "auto" : c.on ? shown(c.gemm) : "none";
    if (c.on && !c.in_attention() && !has_mlp(r))
      c.off("routed experts have no chunks of rows, and no layer has another MLP", Off::idle);
    apply_switches(cfg, c);
    choose_chunks(r, l, rows, c);
    check_ring_rows(r, l, rows, c);
    if (c.is_wgrad() && c.on && splits_backward(r, l))
      c.off("the schedule delays weight gradients, so no GEMM runs beside the scatter", Off::idle);
    // kGemmKeys lists a GEMM's dgrad before its wgrad, so dgrad is decided already.
    if (c.is_wgrad() && c.on && overlap.tp_gemm_overlap.at(c.key.gemm, Pass::dgrad).chunked())
      c.off("the GEMM of the input gradient scatters its own result", Off::contradicts);
    if (c.on && c.why.empty()) c.why = hidden_text(c);
    if (c.is_wgrad() && c.on) c.why += delayed_text(r, l, c);
    const std::string no_aggregate = drop_aggregate(l, c);
    if (c.on && c.gemm.fp8_buf) c.why += "; without fp8_buf: messages are bf16";
    const int64_t margin = sm_margin(c);
    if (margin > 0)
      c.why += fmt::format("; leaves {} multiprocessor{} of a GPU", margin, margin == 1 ? "" : "s");
    unused_num_sm = unused_num_sm || (c.asked && c.gemm.num_sm_given && margin == 0);
    cga_size = cga_size || (c.asked && c.gemm.cga_size_given);
    if (c.on)
      overlap.tp_gemm_overlap.at(c.key.gemm, c.key.pass) = {
          gemm_method(c.gemm.method), c.gemm.num_splits, c.gemm.aggregate, margin};
    const std::string field = fmt::format("{}.{}", section, c.key.name);
    overlap.table.push_back({field, asked, c.on ? shown(c.gemm) : "none", c.why, c.row_off, c.on});
    if (!no_aggregate.empty())
      overlap.table.push_back({field + ".aggregate", "true", "false", no_aggregate, Off::idle});
  }
  const Off off = cfg.tp_comm_overlap_cfg.preset.empty() ? Off::idle : Off::part_of_preset;
  if (unused_num_sm)
    overlap.table.push_back({section + ".*.num_sm", "given", "none",
                             "a GEMM leaves num_sm multiprocessors if it hides communication and "
                             "has set_sm_margin: true; NCCL decides how many it takes",
                             off});
  if (cga_size)
    overlap.table.push_back({section + ".*.cga_size", "given", "none",
                             "it acts on user buffers, which mtrain does not have", off});
}

}  // namespace mtrain::plan
