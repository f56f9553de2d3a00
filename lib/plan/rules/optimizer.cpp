#include <fmt/core.h>

#include "plan/rules/rules.h"
#include "recipe/schema/schema.h"

namespace mtrain::plan {

void validate_schedule(const Recipe& r, Diagnostics& diagnostics) {
  const auto& s = r.lr_scheduler;
  if (!s.decay_steps) return;  // it follows from train.epochs, once the data are known
  const int64_t decay = *s.decay_steps;
  diagnostics.require(
      s.warmup_steps < decay || s.style == recipe::LrStyle::constant,
      {"lr_scheduler.warmup_steps", "lr_scheduler.decay_steps", "train.steps"},
      fmt::format("warmup_steps {} leave nothing of decay_steps {}, which include them",
                  s.warmup_steps, decay),
      "shorten the warm-up, or raise decay_steps (train.steps unless set)");
  if (s.style == recipe::LrStyle::wsd && s.wsd_decay_steps)
    diagnostics.require(
        s.warmup_steps + *s.wsd_decay_steps <= decay,
        {"lr_scheduler.wsd_decay_steps", "lr_scheduler.warmup_steps", "lr_scheduler.decay_steps"},
        fmt::format("warm-up {} and final decay {} are longer than decay_steps {}", s.warmup_steps,
                    *s.wsd_decay_steps, decay),
        "shorten one of them");
}

namespace {

// A printed recipe has every field. Therefore a field with its default value is not a mistake.
void refuse_muon_settings(const Recipe& r, Diagnostics& diagnostics) {
  for (const recipe::SchemaRow& row : recipe::schema_rows()) {
    if (!row.path.starts_with("optimizer.muon.")) continue;
    const auto spelled = r.spellings.find(row.path);
    const bool other_name = spelled != r.spellings.end() && spelled->second != row.path;
    diagnostics.require(
        row.show(r) == row.show_default(), {row.path, "optimizer.name"},
        fmt::format("is set{}, but name is {}{}",
                    other_name ? fmt::format(" (written as {})", spelled->second) : "",
                    enum_name(r.optimizer.name),
                    row.path == "optimizer.muon.momentum" ? ", which has betas instead" : ""),
        "set name: muon, or remove it");
  }
}

void validate_muon(const Recipe& r, Diagnostics& diagnostics) {
  const auto& o = r.optimizer;
  const bool muon = o.name == recipe::OptimizerName::muon;
  for (const recipe::OptimizerGroup& g : o.groups)
    diagnostics.require(
        !g.name || (muon && *g.name == recipe::OptimizerName::adamw),
        {"optimizer.groups", "optimizer.name"},
        fmt::format("group `{}` has name {}, but {}", g.match, g.name ? enum_name(*g.name) : "",
                    muon ? "under muon a group may only have name adamw"
                         : fmt::format("optimizer.name is {}", enum_name(o.name))),
        muon ? "write name: adamw, or remove it: muon updates the group's matrices anyway"
             : "a group may only choose adamw instead of muon; remove its name");
  if (!muon) return refuse_muon_settings(r, diagnostics);
  const auto given = int64_t(o.muon.coefficients.size());
  diagnostics.require(given == 3 || given == 3 * o.muon.ns_steps,
                      {"optimizer.muon.coefficients", "optimizer.muon.ns_steps"},
                      fmt::format("{} numbers for {} steps", given, o.muon.ns_steps),
                      "give three for all steps, [a, b, c], or three for each step in one list");
  diagnostics.require(o.master_weights, {"optimizer.master_weights", "optimizer.name"},
                      "muon updates fp32 master weights, but master_weights is false",
                      "set master_weights: true, or name: adamw");
  diagnostics.require(o.moments == recipe::MomentType::fp32,
                      {"optimizer.moments", "optimizer.name"},
                      "muon keeps its momentum and AdamW's moments in fp32, but moments is bf16",
                      "set moments: fp32, or name: adamw");
  diagnostics.require(
      o.decoupled_weight_decay, {"optimizer.decoupled_weight_decay", "optimizer.name"},
      "muon's weights decay beside the update, but decoupled_weight_decay is false", "remove it");
  if (o.muon.tp_mode != recipe::MuonTpMode::blockwise) return;
  const auto& d = r.distributed;
  const int64_t expert_tp = r.model.moe.num_experts > 0 ? d.expert_tp_size.value_or(d.tp_size) : 1;
  if (d.tp_size == 1 && expert_tp == 1) return;
  diagnostics.warn(
      "optimizer.muon.tp_mode",
      fmt::format("blockwise updates each of {} parts of a matrix by itself: losses depend on {}",
                  d.tp_size > 1 ? d.tp_size : expert_tp,
                  d.tp_size > 1 ? "tp_size" : "expert_tp_size"),
      "set it to gathered for the same losses under every layout");
}

}  // namespace

void validate_optimizer(const Recipe& r, Diagnostics& diagnostics) {
  const auto& s = r.lr_scheduler;
  diagnostics.require(s.min_lr <= r.optimizer.lr, {"lr_scheduler.min_lr", "optimizer.lr"},
                      fmt::format("min_lr {} is above optimizer.lr {}", s.min_lr, r.optimizer.lr),
                      "min_lr is the rate at the end; a tenth of lr is usual");
  diagnostics.require(s.init_lr <= r.optimizer.lr, {"lr_scheduler.init_lr", "optimizer.lr"},
                      fmt::format("init_lr {} is above optimizer.lr {}", s.init_lr, r.optimizer.lr),
                      "the warm-up rises from init_lr to lr; 0 is usual");
  const auto& o = r.optimizer;
  diagnostics.require(!o.stochastic_rounding.value_or(false) || !o.master_weights,
                      {"optimizer.stochastic_rounding", "optimizer.master_weights"},
                      "only bf16 weights without fp32 master weights use stochastic rounding",
                      "set master_weights: false, or leave it out");
  diagnostics.require(
      o.moments != recipe::MomentType::bf16 || o.stochastic_rounding.value_or(true),
      {"optimizer.moments", "optimizer.stochastic_rounding"},
      "bf16 moments need stochastic rounding: rounded to nearest, changes below half a step would "
      "be lost",
      "remove stochastic_rounding: false, or set moments: fp32");
  diagnostics.require(
      o.decoupled_weight_decay || o.name != recipe::OptimizerName::adamw,
      {"optimizer.decoupled_weight_decay", "optimizer.name"},
      "adamw is Adam with decoupled weight decay, but decoupled_weight_decay is false",
      "set name: adam to add weight decay to the gradient, or remove it");
  diagnostics.require(o.master_weights || r.mixed_precision.name != recipe::Precision::fp32,
                      {"optimizer.master_weights", "mixed_precision.name"},
                      "fp32 weights are their own master weights: there is nothing to leave out",
                      "set master_weights: true, or mixed_precision: bf16_mixed");
  validate_muon(r, diagnostics);
  const bool wsd = s.style == recipe::LrStyle::wsd;
  diagnostics.require(!wsd || s.wsd_decay_steps,
                      {"lr_scheduler.wsd_decay_steps", "lr_scheduler.style"},
                      "style wsd needs the length of its final decay",
                      "set wsd_decay_steps; a tenth of train.steps is usual");
  diagnostics.require(
      wsd || !s.wsd_decay_steps, {"lr_scheduler.wsd_decay_steps", "lr_scheduler.style"},
      fmt::format("is set, but style is {}", enum_name(s.style)), "set style: wsd, or remove it");
}

}  // namespace mtrain::plan
