// Tests the rules of 8-bit linears, violated alone and satisfied at their boundary.
#include <fmt/core.h>

#include "plan/run_plan.h"
#include "recipe_cases.h"

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

TEST_CASE("8-bit linears are refused where the device, the scales or the sizes do not fit") {
  expect_error({.what = "fp8 gather", .set = {"mixed_precision.fp8_param_gather=true"}},
               "mixed_precision.fp8_param_gather", "8-bit");
  expect_error({.what = "fp8 on a100", .set = {"mixed_precision.fp8=hybrid", "hardware.gpu=a100"}},
               "mixed_precision.fp8", "a100");
  expect_error({.what = "fp8 on a cpu", .set = {"mixed_precision.fp8=hybrid", "train.device=cpu"}},
               "mixed_precision.fp8", "CPU");
  expect_accepts({.what = "fp8 on h100",
                  .set = {"mixed_precision.fp8=hybrid", "mixed_precision.fp8_param_gather=true"}});
  expect_error({.what = "fp8 of odd sizes",
                .set = {"mixed_precision.fp8=hybrid", "model.ffn_hidden_size=712"}},
               "model.ffn_hidden_size", "multiple of 16, not 712");
  expect_error(
      {.what = "fp8 of odd sizes per rank",
       .world = 2,
       .set = {"mixed_precision.fp8=hybrid", "model.ffn_hidden_size=720", "distributed.tp_size=2"}},
      "model.ffn_hidden_size", "multiple of 16, not 360");
  expect_accepts(
      {.what = "fp8 emulated",
       .set = {"mixed_precision.fp8=e4m3", "train.device=cpu", "debug.emulate_fp8=true"}});
  expect_error({.what = "nothing to emulate", .set = {"debug.emulate_fp8=true"}},
               "debug.emulate_fp8", "no 8-bit");
  expect_error({.what = "a history of current scales",
                .set = {"mixed_precision.fp8=hybrid", "model.fp8_amax_history_len=16"}},
               "mixed_precision.fp8_amax_history_len", "no history");
  expect_accepts(
      {.what = "a history of delayed scales",
       .set = {"mixed_precision={fp8: hybrid, fp8_recipe: delayed, fp8_amax_history_len: 16, "
               "fp8_amax_compute_algo: max, fp8_margin: 1}"}});
}

TEST_CASE("layers in bf16 beside 8-bit ones are counted within the model") {
  const std::string on = "mixed_precision={fp8: hybrid, first_last_layers_bf16: true}";
  const auto more = [&](const Overrides& set) {
    Overrides all{on, "model.num_layers=4"};
    all.insert(all.end(), set.begin(), set.end());
    return all;
  };
  expect_accepts({.what = "one and one", .set = more({})});
  expect_accepts(
      {.what = "Megatron's names",
       .set = {"mixed_precision.fp8=hybrid", "model.first_last_layers_bf16=true",
               "model.num_layers_at_start_in_bf16=2", "model.num_layers_at_end_in_bf16=0"}});
  expect_error({.what = "without 8 bits", .set = {"mixed_precision.first_last_layers_bf16=true"}},
               "mixed_precision.first_last_layers_bf16", "no 8-bit");
  expect_error({.what = "delayed", .set = more({"mixed_precision.fp8_recipe=delayed"})},
               "mixed_precision.first_last_layers_bf16", "delayed scales");
  expect_error({.what = "too many", .set = more({"mixed_precision.num_layers_at_start_in_bf16=4"})},
               "mixed_precision.num_layers_at_start_in_bf16", "more than the model's 4 layers");
  expect_warning({.what = "all", .set = more({"mixed_precision.num_layers_at_start_in_bf16=3"})},
                 "mixed_precision.first_last_layers_bf16", "none of the 4 layers");
  expect_warning(
      {.what = "off", .set = {"mixed_precision.fp8=hybrid", "model.num_layers_at_end_in_bf16=2"}},
      "mixed_precision.num_layers_at_end_in_bf16", "ignored");
}
