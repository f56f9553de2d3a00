// optimizer and lr_scheduler: how weights are updated.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/lr_decay.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class OptimizerName { adamw, adam, muon };
constexpr auto enum_names(OptimizerName) {
  return std::array{EnumName{OptimizerName::adamw, "adamw"}, EnumName{OptimizerName::adam, "adam"},
                    EnumName{OptimizerName::muon, "muon"},
                    EnumName{OptimizerName::muon, "dist_muon"}};
}

enum class MuonScale { original, match_rms_adamw, spectral, unit_rms_norm };
constexpr auto enum_names(MuonScale) {
  return std::array{EnumName{MuonScale::original, "original"},
                    EnumName{MuonScale::original, "shape_scaling"},
                    EnumName{MuonScale::match_rms_adamw, "match_rms_adamw"},
                    EnumName{MuonScale::match_rms_adamw, "rms_norm"},
                    EnumName{MuonScale::spectral, "spectral"},
                    EnumName{MuonScale::unit_rms_norm, "unit_rms_norm"},
                    EnumName{MuonScale::unit_rms_norm, "spectral_unclamped"},
                    EnumName{MuonScale::unit_rms_norm, "spectral_norm"}};
}

enum class MuonGemm { fp32, bf16 };
constexpr auto enum_names(MuonGemm) {
  return std::array{EnumName{MuonGemm::fp32, "fp32"}, EnumName{MuonGemm::bf16, "bf16"}};
}

// This setting decides whether Muon updates a divided weight as one matrix or part by part.
enum class MuonTpMode { gathered, blockwise };
constexpr auto enum_names(MuonTpMode) {
  return std::array{
      EnumName{MuonTpMode::gathered, "gathered"}, EnumName{MuonTpMode::gathered, "duplicated"},
      EnumName{MuonTpMode::gathered, "distributed"}, EnumName{MuonTpMode::blockwise, "blockwise"}};
}

struct MuonConfig {
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;
  std::vector<double> coefficients{3.4445, -4.775, 2.0315};
  double eps = 1e-7;
  MuonScale scale_mode = MuonScale::original;
  double scale_factor = 1;
  MuonGemm ns_dtype = MuonGemm::fp32;
  MuonTpMode tp_mode = MuonTpMode::gathered;
  std::optional<double> adamw_lr;

  static constexpr auto fields = std::tuple{
      Field{"momentum",
            &MuonConfig::momentum,
            "decay of the momentum of matrices",
            {.aliases = "optimizer.muon_momentum optimizer.momentum optimizer.mu",
             .min = 0,
             .max = 1,
             .below_max = true}},
      Field{"nesterov",
            &MuonConfig::nesterov,
            "add the gradient to its momentum once more, as Nesterov's method does",
            {.aliases = "optimizer.muon_use_nesterov optimizer.muon_nesterov optimizer.nesterov"}},
      Field{"ns_steps",
            &MuonConfig::ns_steps,
            "steps of the Newton-Schulz iteration",
            {.aliases = "optimizer.muon_num_ns_steps optimizer.ns_steps",
             .unit = "steps",
             .min = 1,
             .max = 99}},
      Field{"coefficients",
            &MuonConfig::coefficients,
            "a, b, c of the iteration X <- a X + (b G + c G^2) X, G = X X^T; or three for each of "
            "ns_steps",
            {.aliases = "optimizer.ns_coefficients"}},
      Field{"eps",
            &MuonConfig::eps,
            "least norm by which a matrix is divided before the iteration",
            {.min = 1e-30}},
      Field{"scale_mode",
            &MuonConfig::scale_mode,
            "factor of the update of an (out, in) matrix: original, sqrt(max(1, out / in)); "
            "match_rms_adamw, 0.2 sqrt(max(out, in)); spectral, sqrt(max(out, in)); "
            "unit_rms_norm, sqrt(out / in)",
            {.aliases = "optimizer.muon_scale_mode optimizer.adjust_lr_fn optimizer.adjust_lr"}},
      Field{"scale_factor",
            &MuonConfig::scale_factor,
            "times the factor of scale_mode",
            {.aliases = "optimizer.muon_extra_scale_factor", .min = 0, .above_min = true}},
      Field{"ns_dtype", &MuonConfig::ns_dtype,
            "operands of the iteration's GEMMs; bf16 is faster on GPUs, and layouts then differ by "
            "its rounding"},
      Field{"tp_mode",
            &MuonConfig::tp_mode,
            "gathered: whole matrices, the same under every layout; blockwise: each rank's part of "
            "a matrix by itself, which is another optimizer for each tp_size",
            {.aliases = "optimizer.muon_tp_mode"}},
      Field{"adamw_lr",
            &MuonConfig::adamw_lr,
            "peak learning rate of the parameters that AdamW updates: biases, norms, embeddings "
            "and the output layer; optimizer.lr unless set. It follows the same schedule",
            {.aliases = "optimizer.scalar_lr", .min = 0, .above_min = true}}};
};

// What differs for the parameters in whose names `match` is found.
struct OptimizerGroup {
  std::string match;  // a regular expression
  std::optional<double> lr, lr_scale, weight_decay;
  std::optional<OptimizerName> name;
  bool operator==(const OptimizerGroup&) const = default;
};

enum class MomentType { fp32, bf16 };
constexpr auto enum_names(MomentType) {
  return std::array{EnumName{MomentType::fp32, "fp32"}, EnumName{MomentType::bf16, "bf16"}};
}

struct OptimizerConfig {
  OptimizerName name = OptimizerName::adamw;
  double lr = 3e-4;
  std::array<double, 2> betas{0.9, 0.95};
  double eps = 1e-8, weight_decay = 0.1, clip_grad = 1.0;
  bool decoupled_weight_decay = true;
  bool master_weights = true;
  Auto<bool> stochastic_rounding;  // auto: without master weights

  MomentType moments = MomentType::fp32;
  MuonConfig muon;
  std::vector<OptimizerGroup> groups;

  bool rounds_stochastically() const { return stochastic_rounding.value_or(!master_weights); }

  static constexpr auto fields = std::tuple{
      Field{"name",
            &OptimizerConfig::name,
            "update rule: adamw; adam, with the weight decay that decoupled_weight_decay chooses; "
            "or muon for the matrices of layers, with adamw for the rest",
            {.aliases = "optimizer.optimizer"}},
      Field{"lr",
            &OptimizerConfig::lr,
            "peak learning rate",
            {.aliases = "optimizer.max_lr scheduler.max_lr", .min = 0, .above_min = true}},
      Field{"betas",
            &OptimizerConfig::betas,
            "decay of the first and second moment",
            {.aliases = "optimizer.adam_betas", .min = 0, .max = 1, .below_max = true}},
      Field{"eps",
            &OptimizerConfig::eps,
            "added to the root of the second moment",
            {.aliases = "optimizer.adam_eps", .min = 0, .above_min = true}},
      Field{"weight_decay",
            &OptimizerConfig::weight_decay,
            "per step and learning rate; biases and norms are left out unless optimizer.groups "
            "sets theirs",
            {.min = 0}},
      Field{"decoupled_weight_decay",
            &OptimizerConfig::decoupled_weight_decay,
            "true: weights decay beside the update (AdamW); false, for adam: "
            "weight_decay times the weight is added to the gradient (L2)",
            {.aliases = "optimizer.adam_w_mode"}},
      Field{"clip_grad",
            &OptimizerConfig::clip_grad,
            "clip the global gradient norm to this; 0 turns clipping off",
            {.aliases = "clip_grad_norm.max_norm", .min = 0}},
      Field{"master_weights", &OptimizerConfig::master_weights,
            "keep fp32 weights beside bf16 ones"},
      Field{
          "stochastic_rounding", &OptimizerConfig::stochastic_rounding,
          "unbiased stochastic rounding of bf16 weights that have no fp32 ones beside them; auto: "
          "where there are no fp32 ones"},
      Field{"moments", &OptimizerConfig::moments,
            "element type of the two moments; bf16 takes half the memory, and has unbiased "
            "stochastic rounding"},
      Field{"muon", &OptimizerConfig::muon, "Muon's rule for matrices, under name: muon"},
      Field{
          "groups", &OptimizerConfig::groups,
          "what differs for some parameters: a list of {match, lr, lr_scale, weight_decay, name}; "
          "match is a regular expression, found anywhere in a parameter's name, and the first "
          "group that matches decides"}};
};

enum class LrStyle { cosine, linear, constant, wsd };
constexpr auto enum_names(LrStyle) {
  return std::array{EnumName{LrStyle::cosine, "cosine"}, EnumName{LrStyle::linear, "linear"},
                    EnumName{LrStyle::constant, "constant"}, EnumName{LrStyle::wsd, "wsd"}};
}

struct LrSchedulerConfig {
  LrStyle style = LrStyle::cosine;
  int64_t warmup_steps = 0;
  std::optional<int64_t> decay_steps;
  double init_lr = 0.0, min_lr = 0.0;
  std::optional<int64_t> wsd_decay_steps;
  LrDecay wsd_decay_style = LrDecay::exponential;

  static constexpr auto fields = std::tuple{
      Field{"style",
            &LrSchedulerConfig::style,
            "shape after the warm-up",
            {.aliases = "lr_scheduler.lr_decay_style scheduler.lr_decay_style"}},
      Field{"warmup_steps",
            &LrSchedulerConfig::warmup_steps,
            "linear warm-up from init_lr",
            {.aliases = "lr_scheduler.lr_warmup_steps scheduler.lr_warmup_iters",
             .unit = "steps",
             .min = 0}},
      Field{"decay_steps",
            &LrSchedulerConfig::decay_steps,
            "step at which min_lr is reached, warm-up included; train.steps unless set",
            {.aliases = "lr_scheduler.lr_decay_steps scheduler.lr_decay_iters",
             .unit = "steps",
             .min = 1}},
      Field{"init_lr",
            &LrSchedulerConfig::init_lr,
            "learning rate from which the warm-up rises",
            {.aliases = "optimizer.lr_warmup_init scheduler.lr_warmup_init", .min = 0}},
      Field{"min_lr",
            &LrSchedulerConfig::min_lr,
            "learning rate at the end",
            {.aliases = "optimizer.min_lr scheduler.min_lr", .min = 0}},
      Field{"wsd_decay_steps",
            &LrSchedulerConfig::wsd_decay_steps,
            "wsd: length of the final decay",
            {.aliases = "lr_scheduler.lr_wsd_decay_steps scheduler.lr_wsd_decay_iters",
             .unit = "steps",
             .min = 1}},
      Field{"wsd_decay_style",
            &LrSchedulerConfig::wsd_decay_style,
            "wsd: shape of the final decay",
            {.aliases = "lr_scheduler.lr_wsd_decay_style scheduler.lr_wsd_decay_style"}}};
};

}  // namespace mtrain::recipe
