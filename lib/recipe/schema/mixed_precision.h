// mixed_precision: the element types of training.
#pragma once
#include <array>
#include <tuple>

#include "recipe/schema/element_type.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class Precision { fp32, bf16_mixed, fp16_mixed };
constexpr auto enum_names(Precision) {
  return std::array{EnumName{Precision::fp32, "fp32"},
                    EnumName{Precision::bf16_mixed, "bf16_mixed"},
                    EnumName{Precision::fp16_mixed, "fp16_mixed"},
                    EnumName{Precision::fp32, "float32"},
                    EnumName{Precision::bf16_mixed, "bf16"},
                    EnumName{Precision::fp16_mixed, "fp16"}};
}

enum class Fp8Format { none, e4m3, hybrid };
constexpr auto enum_names(Fp8Format) {
  return std::array{EnumName{Fp8Format::none, "none"}, EnumName{Fp8Format::e4m3, "e4m3"},
                    EnumName{Fp8Format::hybrid, "hybrid"}};
}

enum class Fp8Recipe { tensorwise, delayed, blockwise, mxfp8 };
constexpr auto enum_names(Fp8Recipe) {
  return std::array{
      EnumName{Fp8Recipe::tensorwise, "tensorwise"}, EnumName{Fp8Recipe::delayed, "delayed"},
      EnumName{Fp8Recipe::blockwise, "blockwise"}, EnumName{Fp8Recipe::mxfp8, "mxfp8"}};
}

enum class Fp8AmaxChoice { most_recent, max };
constexpr auto enum_names(Fp8AmaxChoice) {
  return std::array{EnumName{Fp8AmaxChoice::most_recent, "most_recent"},
                    EnumName{Fp8AmaxChoice::max, "max"}};
}

struct MixedPrecisionConfig {
  Precision name = Precision::bf16_mixed;
  Auto<ElementType> params_dtype;
  bool grad_reduce_in_fp32 = true;
  Fp8Format fp8 = Fp8Format::none;
  Fp8Recipe fp8_recipe = Fp8Recipe::tensorwise;
  int64_t fp8_margin = 0, fp8_amax_history_len = 1;
  Fp8AmaxChoice fp8_amax_compute_algo = Fp8AmaxChoice::most_recent;
  bool fp8_param_gather = false;
  bool first_last_layers_bf16 = false;
  int64_t num_layers_at_start_in_bf16 = 1, num_layers_at_end_in_bf16 = 1;
  Auto<double> loss_scale;
  double initial_loss_scale = 65536, min_loss_scale = 1;
  int64_t loss_scale_window = 2000, hysteresis = 1;

  static constexpr auto fields = std::tuple{
      Field{"name", &MixedPrecisionConfig::name,
            "bf16_mixed: bf16 weights and activations, fp32 sums, gradients and master weights; "
            "fp16_mixed: the same with fp16, and a scaled loss"},
      Field{"params_dtype",
            &MixedPrecisionConfig::params_dtype,
            "element type of the weights; auto: by name",
            {.aliases = "model.params_dtype"}},
      Field{"grad_reduce_in_fp32",
            &MixedPrecisionConfig::grad_reduce_in_fp32,
            "keep and reduce gradients in fp32",
            {.aliases = "ddp.grad_reduce_in_fp32 distributed.grad_reduce_in_fp32 "
                        "comm_overlap.grad_reduce_in_fp32"}},
      Field{"fp8",
            &MixedPrecisionConfig::fp8,
            "8-bit GEMMs of the layers' linears; hybrid: e4m3, with gradients in e5m2",
            {.aliases = "model.fp8 model.fp8_format"}},
      Field{"fp8_recipe",
            &MixedPrecisionConfig::fp8_recipe,
            "values that decide an 8-bit scale; tensorwise: the tensor; delayed: earlier steps; "
            "blockwise: 128 elements along a GEMM's K, in weights 128 x 128 (h100, h200); mxfp8: "
            "32 elements along K (b200 or newer)",
            {.aliases = "model.fp8_recipe fp8.recipe_name"}},
      Field{"fp8_margin",
            &MixedPrecisionConfig::fp8_margin,
            "divide 8-bit scales by 2^margin, as headroom for larger values",
            {.aliases = "model.fp8_margin", .min = 0, .max = 16}},
      Field{"fp8_amax_history_len",
            &MixedPrecisionConfig::fp8_amax_history_len,
            "fp8_recipe delayed: earlier steps whose largest values decide the scale",
            {.aliases = "model.fp8_amax_history_len", .unit = "steps", .min = 1, .max = 4096}},
      Field{"fp8_amax_compute_algo",
            &MixedPrecisionConfig::fp8_amax_compute_algo,
            "fp8_recipe delayed: which value of the history decides the scale",
            {.aliases = "model.fp8_amax_compute_algo"}},
      Field{
          "fp8_param_gather",
          &MixedPrecisionConfig::fp8_param_gather,
          "gather the weights of 8-bit GEMMs in 8 bits: half of bf16's bytes, and the same results",
          {.aliases = "model.fp8_param_gather mixed_precision.fp8_param model.fp8_param "
                      "ddp.fp8_param_gather "
                      "fp8.enable_fsdp_float8_all_gather"}},
      Field{"first_last_layers_bf16",
            &MixedPrecisionConfig::first_last_layers_bf16,
            "keep bf16 GEMMs in the first and last layers of a model with 8-bit GEMMs",
            {.aliases = "model.first_last_layers_bf16"}},
      Field{"num_layers_at_start_in_bf16",
            &MixedPrecisionConfig::num_layers_at_start_in_bf16,
            "first_last_layers_bf16: how many of the first layers",
            {.aliases = "model.num_layers_at_start_in_bf16", .unit = "layers", .min = 0}},
      Field{"num_layers_at_end_in_bf16",
            &MixedPrecisionConfig::num_layers_at_end_in_bf16,
            "first_last_layers_bf16: how many of the last layers",
            {.aliases = "model.num_layers_at_end_in_bf16", .unit = "layers", .min = 0}},
      Field{
          "loss_scale",
          &MixedPrecisionConfig::loss_scale,
          "fixed scale of the loss; auto: dynamic for fp16_mixed, else 1",
          {.aliases = "optimizer.loss_scale", .min = 0, .above_min = true, .auto_word = "dynamic"}},
      Field{"initial_loss_scale",
            &MixedPrecisionConfig::initial_loss_scale,
            "dynamic loss scale of the first step",
            {.aliases = "optimizer.initial_loss_scale", .min = 0, .above_min = true}},
      Field{"min_loss_scale",
            &MixedPrecisionConfig::min_loss_scale,
            "smallest dynamic loss scale; an overflow at this scale ends the run",
            {.aliases = "optimizer.min_loss_scale", .min = 0, .above_min = true}},
      Field{"loss_scale_window",
            &MixedPrecisionConfig::loss_scale_window,
            "the dynamic loss scale doubles after this many steps without an overflow",
            {.aliases = "optimizer.loss_scale_window", .unit = "steps", .min = 1}},
      Field{"hysteresis",
            &MixedPrecisionConfig::hysteresis,
            "the dynamic loss scale halves after this many overflows since it last grew, and at "
            "each further overflow",
            {.aliases = "optimizer.hysteresis", .min = 1}}};
};

}  // namespace mtrain::recipe
