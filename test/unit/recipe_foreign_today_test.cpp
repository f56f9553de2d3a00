// Tests keys of Megatron-Bridge, Megatron and AutoModel that decide together with other settings,
// and those that have no effect in mtrain.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/layout.h"
#include "recipe_cases.h"

namespace recipe_foreign_today_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

Recipe loaded(const std::string& more, const Overrides& set = {}) {
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), kBase + more, "base.yaml",
                                          set, diagnostics, 0);
  INFO(more << listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

std::string errors(const std::string& more, const Overrides& set = {}) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + more, "base.yaml", set, diagnostics,
                         0);
  return diagnostics.text(Severity::error);
}

using Layers = std::vector<int64_t>;

// Returns the layers of each stage, of a model of so many on so many ranks with so many stages.
Layers split(int64_t layers, int64_t pp, int64_t vpp, const Overrides& more) {
  Overrides set{fmt::format("model.num_layers={}", layers),
                fmt::format("model.pipeline_model_parallel_size={}", pp),
                fmt::format("train.global_batch_size={}", 8 * pp)};
  if (vpp > 1) set.push_back(fmt::format("model.virtual_pipeline_model_parallel_size={}", vpp));
  set.insert(set.end(), more.begin(), more.end());
  return plan::layout_of(loaded("", set), 0).layers_of_stage;
}

}  // namespace

TEST_CASE("embedding and loss that count as layers shift the split of a pipeline") {
  const Overrides both{"model.account_for_embedding_in_pipeline_split=true",
                       "model.account_for_loss_in_pipeline_split=true"};
  CHECK(split(14, 4, 1, both) == Layers{3, 4, 4, 3});
  CHECK(split(15, 4, 1, {both[0]}) == Layers{3, 4, 4, 4});
  CHECK(split(15, 4, 1, {both[1]}) == Layers{4, 4, 4, 3});
  CHECK(split(14, 4, 2, both) == Layers{1, 2, 2, 2, 2, 2, 2, 1});
  // Llama 3.1 405B: one layer per stage, and none beside the embedding and the loss.
  const Layers large = split(126, 16, 8, both);
  REQUIRE(large.size() == 128);
  CHECK(large.front() == 0);
  CHECK(large.back() == 0);
  CHECK(std::count(large.begin(), large.end(), 1) == 126);
  CHECK_THAT(errors("", {"model.num_layers=126", "model.pipeline_model_parallel_size=16",
                         "model.virtual_pipeline_model_parallel_size=8",
                         "train.global_batch_size=128", both[0]}),
             Contains("127 layers") && Contains("fewer than the 128 stages"));
  // Without a pipeline there is nothing to split, and all layers stay.
  CHECK(plan::layout_of(loaded("", both), 0).layers_of_stage == Layers{8});
}

TEST_CASE("layers of the first and the last rank leave the rest to the others") {
  const Overrides both{"model.num_layers_in_first_pipeline_stage=3",
                       "model.num_layers_in_last_pipeline_stage=1"};
  CHECK(split(12, 4, 1, both) == Layers{3, 4, 4, 1});
  CHECK(split(11, 4, 1, both) == Layers{3, 4, 3, 1});
  CHECK(split(12, 4, 1, {both[0]}) == Layers{3, 3, 3, 3});
  CHECK(split(16, 4, 2, {"model.decoder_first_pipeline_num_layers=4"}) ==
        Layers{2, 2, 2, 2, 2, 2, 2, 2});
  CHECK(split(4, 2, 1, both) == Layers{3, 1});
  for (const char* schedule : {"v_schedule", "dualpipev"})
    CHECK_THAT(errors("", {"model.pipeline_model_parallel_size=2", both[0],
                           fmt::format("distributed.pipeline.pp_schedule={}", schedule)}),
               Contains("has the last stage, too"));
  CHECK_THAT(
      errors("", {"model.num_layers=5", "model.pipeline_model_parallel_size=2", both[0], both[1]}),
      Contains("leaves 1 of the 5 layers"));
  CHECK_THAT(errors("", {"model.pipeline_model_parallel_size=2", both[0],
                         "model.account_for_loss_in_pipeline_split=true"}),
             Contains("give one of the two"));
}

TEST_CASE("keys that decide a setting together with others set it") {
  const auto warmup = [](const Overrides& set) {
    return loaded("", set).lr_scheduler.warmup_steps;
  };
  CHECK(warmup({"lr-warmup-fraction=0.01"}) == 10);
  CHECK(warmup({"scheduler.lr_warmup_fraction=0.1", "train.steps=50"}) == 5);
  CHECK(warmup({"scheduler.lr_warmup_fraction=0.1", "scheduler.lr_decay_iters=400"}) == 40);
  CHECK_THAT(errors("", {"lr-warmup-fraction=2"}), Contains("from 0 to 1"));
  CHECK_THAT(errors("", {"lr-warmup-fraction=0.1", "lr-warmup-iters=5"}),
             Contains("is given beside scheduler.lr_warmup_iters"));

  const auto decay = [](const std::string& keys) {
    return loaded("optimizer: {weight_decay: 0.1}\nscheduler: {" + keys + "}\n")
        .optimizer.weight_decay;
  };
  CHECK(decay("start_weight_decay: 0.033, end_weight_decay: 0.033, weight_decay_incr_style: "
              "constant") == 0.033);
  CHECK(decay("start_weight_decay: null, end_weight_decay: null") == 0.1);
  CHECK_THAT(errors("scheduler: {start_weight_decay: 0.01, end_weight_decay: 0.1}\n"),
             Contains("grows from 0.01 to 0.1"));
  CHECK_THAT(errors("scheduler: {weight_decay_incr_style: cosine}\n"),
             Contains("a weight decay that grows is not supported"));

  const auto moments = [](const std::string& text) {
    return loaded("optimizer: {" + text + "}\n").optimizer.moments;
  };
  using enum recipe::MomentType;
  CHECK(moments("exp_avg_dtype: torch.bfloat16, exp_avg_sq_dtype: torch.bfloat16") == bf16);
  CHECK(moments("exp_avg_dtype: float32, exp_avg_sq_dtype: torch.float32") == fp32);
  CHECK(moments("exp_avg_dtype: bf16, exp_avg_sq_dtype: bf16, moments: bf16") == bf16);
  CHECK_THAT(errors("optimizer: {exp_avg_dtype: bf16}\n"),
             Contains("the moments would be bf16 and fp32"));
  CHECK_THAT(errors("optimizer: {exp_avg_dtype: bf16, exp_avg_sq_dtype: bf16, moments: fp32}\n"),
             Contains("another type"));
  CHECK_THAT(errors("optimizer: {exp_avg_dtype: torch.uint8, exp_avg_sq_dtype: torch.uint8}\n"),
             Contains("fp32 or bf16"));

  const Recipe null = loaded("", {"model.vocab_size=0", "tokenizer.tokenizer_type=NullTokenizer",
                                  "tokenizer.vocab_size=511"});
  CHECK(null.model.vocab_size == 512);
  CHECK(loaded("", {"tokenizer.tokenizer_type=NullTokenizer", "tokenizer.vocab_size=99"})
            .model.vocab_size == 512);

  const auto sent = [](const Overrides& set) { return loaded("", set).distributed.pipeline.dtype; };
  CHECK(sent({"model.pipeline_model_parallel_size=2", "model.pipeline_dtype=torch.bfloat16"}) ==
        recipe::ElementType::bf16);
  CHECK_FALSE(sent({"model.pipeline_dtype=torch.bfloat16"}));
  CHECK_THAT(errors("", {"model.pipeline_model_parallel_size=2", "model.pipeline_dtype=bf16",
                         "distributed.pipeline.dtype=fp32"}),
             Contains("keep one of them"));

  CHECK_FALSE(loaded("", {"optimizer.main_grads_dtype=torch.bfloat16", "ddp.bucket_size=1000"})
                  .mixed_precision.grad_reduce_in_fp32);
  CHECK(loaded("", {"optimizer.main_grads_dtype=torch.float32", "ddp.bucket_size=1000"})
            .mixed_precision.grad_reduce_in_fp32);
  CHECK_THAT(errors("", {"optimizer.main_grads_dtype=bf16", "ddp.grad_reduce_in_fp32=true"}),
             Contains("grad_reduce_in_fp32 is true"));
  CHECK(loaded("", {"scheduler.max_lr=0.002"}).optimizer.lr == 0.002);
  CHECK(loaded("", {"model.backend.gate_precision=float32"}).model.moe.router_dtype ==
        recipe::ElementType::fp32);
}

TEST_CASE("a seed beside rng.seed is passed over with a note, wherever it stands") {
  CHECK(loaded("seed: 42\nrng: {seed: 1111}\n").train.seed == 1111);
  CHECK(loaded("rng: {seed: 1111}\nseed: 42\n").train.seed == 1111);
  CHECK(loaded("seed: 42\n").train.seed == 42);
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(),
                         std::string(kBase) + "rng: {seed: 1111}\nseed: 42\n", "base.yaml", {},
                         diagnostics, 0);
  CHECK_THAT(listed(diagnostics), Contains("seed: is not read beside rng.seed"));
}

TEST_CASE("AutoModel's older name of the pipeline section is read") {
  const Recipe r = loaded(
      "distributed: {pp_size: 2}\n"
      "autopipeline: {_target_: nemo_automodel.components.distributed.pipelining.AutoPipeline, "
      "pp_schedule: interleaved1f1b, pp_microbatch_size: 1, pp_batch_size: 8}\n");
  CHECK(r.distributed.pipeline.pp_schedule == ScheduleId::interleaved_1f1b);
  CHECK(r.distributed.pipeline.pp_microbatch_size == 1);
}

TEST_CASE("keys without a meaning here say why, and others are refused with the way to go") {
  for (const char* key :
       {"scheduler.override_opt_param_scheduler=true", "model.moe_enable_deepep=true",
        "model.cuda_graph_scope=full", "model.calculate_per_token_loss=true",
        "optimizer.use_precision_aware_optimizer=true", "optimizer.main_params_dtype=torch.float32",
        "packed_sequence.max_packs=none", "no-masked-softmax-fusion=true",
        "attention-softmax-in-fp32=true", "no-bias-dropout-fusion=true", "rng.te_rng_tracker=true"})
    expect_no_warning({.what = key, .set = {key}});
  expect_warning({.what = "a scope", .set = {"model.cuda_graph_scope=attn"}},
                 "model.cuda_graph_scope", "with full_iteration those of a step");
  struct Row {
    const char *key, *gist;
  };
  for (const Row& row : {Row{"scheduler.use_checkpoint_opt_param_scheduler=true", "schedule wins"},
                         {"packed_sequence.prepacked=true", "made from documents"},
                         {"optimizer.main_params_dtype=torch.float16", "fp32"},
                         {"model.fine_grained_activation_offloading=true", "host memory"},
                         {"model.offload_modules=[attn_norm]", "host memory"}}) {
    INFO(row.key);
    CHECK_THAT(errors("", {row.key}), Contains(row.gist) && Contains("hint:"));
  }
  CHECK(loaded("", {"mixed_precision.fp8_param=true", "mixed_precision.fp8=hybrid",
                    "train.device=cuda"})
            .mixed_precision.fp8_param_gather);
}

}  // namespace recipe_foreign_today_test
