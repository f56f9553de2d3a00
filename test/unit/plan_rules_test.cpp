// Tests every rule of a recipe, violated alone and satisfied at its boundary. The rules of layouts
// are in plan_layout_rules_test.cpp.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_rules_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

TEST_CASE("a list of layers has an entry for each, and some layer that it acts on") {
  const char *window = "model.window_size=64", *learned = "model.position_embedding=learned",
             *local = "model.rotary_base_local=10";
  expect_accepts({.what = "layers of several kinds",
                  .set = {window, "model.window_attn_skip_freq=[1,0,1,0,1,0,1,0]", local,
                          "model.no_rope_freq=[0,0,0,1,0,0,0,1]", "model.query_pre_attn_scalar=64",
                          "model.attn_logit_softcapping=50"}});
  expect_accepts({.what = "every fourth without positions", .set = {"model.no_rope_freq=4"}});
  expect_error({.what = "a short list", .set = {"model.no_rope_freq=[0,1]"}}, "model.no_rope_freq",
               "a list of 2 for 8 layers");
  expect_error({.what = "a list of other numbers", .set = {"model.no_rope_freq=[0,1,2,0,0,0,0,0]"}},
               "model.no_rope_freq", "a 1 for a layer without");
  expect_error({.what = "no list", .set = {window, "model.window_attn_skip_freq=[]"}},
               "model.window_attn_skip_freq", "a list of 0 for 8 layers");
  expect_error({.what = "no positions to leave out", .set = {learned, "model.no_rope_freq=4"}},
               "model.no_rope_freq", "learned");
  expect_error({.what = "no window", .set = {"model.window_attn_skip_freq=2"}},
               "model.window_attn_skip_freq", "window_size is not set");
  expect_error({.what = "no layer with it", .set = {window, "model.window_attn_skip_freq=1"}},
               "model.window_attn_skip_freq", "none of the 8 layers");
  expect_error({.what = "a base for no window", .set = {local}}, "model.rotary_base_local",
               "window_size is not set");
  expect_error({.what = "a base for learned positions", .set = {window, learned, local}},
               "model.rotary_base_local", "learned");
  expect_warning({.what = "a base that no layer rotates by",
                  .set = {window, local, "model.window_attn_skip_freq=[0,0,0,1,0,0,0,1]",
                          "model.no_rope_freq=4"}},
                 "model.rotary_base_local", "no layer with a window has rotary positions");
}

TEST_CASE("heads must divide the model's width, and positions suffice for a sample") {
  expect_accepts({.what = "base"});
  expect_error(
      {.what = "heads", .set = {"model.num_attention_heads=12", "model.num_query_groups=4"}},
      "model.num_attention_heads", "256 is not divisible by 12");
  expect_accepts({.what = "heads with own size",
                  .set = {"model.num_attention_heads=12", "model.num_query_groups=4",
                          "model.kv_channels=32"}});
  expect_error({.what = "groups", .set = {"model.num_query_groups=3"}}, "model.num_query_groups",
               "8 heads");
  expect_error({.what = "more groups than heads", .set = {"model.num_query_groups=16"}},
               "model.num_query_groups", "");
  expect_error({.what = "odd head", .set = {"model.kv_channels=33"}}, "model.kv_channels", "even");
  expect_accepts({.what = "odd head, learned",
                  .set = {"model.kv_channels=33", "model.position_embedding=learned"}});
  expect_error({.what = "positions", .set = {"model.max_position_embeddings=1023"}},
               "dataset.seq_length", "1023");
  expect_accepts({.what = "positions fit", .set = {"model.max_position_embeddings=1024"}});
}

TEST_CASE("rotary settings are those of one kind of positions, and in order") {
  expect_error({.what = "rope scaling on learned",
                .set = {"model.position_embedding=learned", "model.rope_scaling=linear"}},
               "model.rope_scaling.type", "learned");
  expect_error({.what = "rope factors",
                .set = {"model.rope_scaling=llama3", "model.rope_scaling.low_freq_factor=4"}},
               "model.rope_scaling.low_freq_factor", "below");
  expect_error({.what = "an odd part of a head", .set = {"model.rotary_percent=0.3"}},
               "model.rotary_percent", "0.3 of a head of 32 are 9 elements");
  expect_error({.what = "no part of a head", .set = {"model.rotary_percent=0.01"}},
               "model.rotary_percent", "are 0 elements");
  expect_accepts(
      {.what = "part of an odd head", .set = {"model.kv_channels=33", "model.rotary_percent=0.5"}});
  expect_warning({.what = "part of a head, learned",
                  .set = {"model.rotary_percent=0.5", "model.position_embedding=learned"}},
                 "model.rotary_percent", "learned positions");
  expect_error({.what = "yarn's lanes",
                .set = {"model.rope_scaling=yarn", "model.rope_scaling.beta_slow=33"}},
               "model.rope_scaling.beta_fast", "below");
  expect_no_warning({.what = "yarn",
                     .set = {"model.rope_scaling=yarn", "model.rope_scaling.beta_slow=32",
                             "model.rope_scaling.mscale=1", "model.rope_scaling.mscale_all_dim=1",
                             "model.rope_scaling.low_freq_factor=1"}});
  expect_warning({.what = "one mscale",
                  .set = {"model.rope_scaling=yarn", "model.rope_scaling.mscale_all_dim=1"}},
                 "model.rope_scaling.mscale_all_dim", "only read together");
  expect_warning(
      {.what = "mscale and the factor",
       .set = {"model.rope_scaling=yarn", "model.rope_scaling.mscale=1",
               "model.rope_scaling.mscale_all_dim=1", "model.rope_scaling.attention_factor=1"}},
      "model.rope_scaling.mscale", "attention_factor is given");
}

TEST_CASE("norms of all heads need norms, and biases of the MLP need its kind of norm") {
  expect_error({.what = "all heads of no norm", .set = {"model.qk_layernorm_all_heads=true"}},
               "model.qk_layernorm_all_heads", "but qk_layernorm is false");
  expect_accepts(
      {.what = "norms of all heads",
       .set = {"model.qk_layernorm=true", "model.qk_layernorm_all_heads=true",
               "model.norm_placement=post", "model.layernorm_zero_centered_gamma=true"}});
  expect_accepts({.what = "biases of the MLP", .set = {"model.mlp_bias=true"}});
  expect_error({.what = "biases of the MLP beside layer norms",
                .set = {"model.mlp_bias=true", "model.normalization=layernorm"}},
               "model.mlp_bias", "layer norms");
}

TEST_CASE("the length of a sample chooses between the factors of longrope") {
  const Overrides longrope{"model.rope_scaling=longrope", "model.kv_channels=8",
                           "model.rotary_percent=0.5", "model.rope_scaling.short_factor=[1, 2]",
                           "model.rope_scaling.long_factor=[3, 4]"};
  const auto with = [&](const char* more) {
    Overrides set = longrope;
    set.emplace_back(more);
    return set;
  };
  expect_no_warning({.what = "longrope", .set = longrope});
  expect_resolved({.what = "as long as the original",
                   .set = with("model.rope_scaling.original_max_position_embeddings=1024")},
                  "model.rope_scaling.short_factor", "1024 tokens are not longer");
  expect_resolved({.what = "longer than the original",
                   .set = with("model.rope_scaling.original_max_position_embeddings=1023")},
                  "model.rope_scaling.long_factor", "1024 tokens are longer");
  expect_error(
      {.what = "a factor too many", .set = with("model.rope_scaling.long_factor=[1, 2, 3]")},
      "model.rope_scaling.long_factor", "3 factors are given, and a head has 2 lanes");
  expect_warning({.what = "longrope's factor", .set = with("model.rope_scaling.factor=2")},
                 "model.rope_scaling.factor", "does not read it");
  expect_warning({.what = "another type's setting",
                  .set = {"model.rope_scaling=llama3", "model.rope_scaling.beta_fast=16"}},
                 "model.rope_scaling.beta_fast", "type llama3 does not read it");
}

TEST_CASE("what is not supported or not there is refused: dropout, backends, data, tokenizers") {
  expect_error({.what = "attention dropout", .set = {"model.attention_dropout=0.1"}},
               "model.attention_dropout", "");
  expect_error({.what = "top-k", .set = {"model.moe=4", "model.moe.router_topk=5"}},
               "model.moe.router_topk", "5");
  expect_error({.what = "threads as ranks", .set = {"comm.backend=thread"}}, "comm.backend",
               "processes");
  expect_error({.what = "nccl on a CPU", .set = {"comm.backend=nccl", "train.device=cpu"}},
               "comm.backend", "train.device is cpu");
  expect_resolved({.what = "nccl chooses the GPU", .set = {"dist_env.backend=nccl"}},
                  "train.device", "cuda, because comm.backend is nccl");
  expect_accepts({.what = "nccl", .set = {"comm.backend=nccl", "train.device=cuda"}});
  expect_error({.what = "gloo on GPUs", .set = {"comm.backend=gloo", "train.device=cuda"}},
               "comm.backend", "train.device is cuda");
  expect_error({.what = "no data", .set = {"~dataset.train"}}, "dataset.train", "");
  expect_error({.what = "weights", .set = {"dataset.train_weights=[1,2]"}}, "dataset.train_weights",
               "2 weights");
  expect_error({.what = "validation data", .set = {"validation.every_steps=5"}},
               "validation.every_steps", "");
  expect_error({.what = "tokenizer path", .set = {"tokenizer.type=huggingface"}}, "tokenizer.type",
               "");
  expect_resolved({.what = "tokenizer implied", .set = {"tokenizer.path=t.json"}}, "tokenizer.type",
                  "huggingface");
  expect_error({.what = "byte with path", .set = {"tokenizer.type=byte", "tokenizer.path=t"}},
               "tokenizer.path", "");
  expect_error(
      {.what = "ids of no tokenizer", .set = {"tokenizer.type=NullTokenizer", "~model.vocab_size"}},
      "tokenizer.type", "how many ids");
  expect_error({.what = "no tokenizer with path",
                .set = {"tokenizer.type=NullTokenizer", "tokenizer.path=t"}},
               "tokenizer.path", "reads no file");
  // Ids in use count: ASCII needs half of the byte tokenizer's.
  expect_accepts({.what = "fewer rows than the tokenizer has ids",
                  .set = {"tokenizer.type=byte", "model.vocab_size=128"}});
  expect_accepts({.what = "ids of no tokenizer, of which there are 200",
                  .set = {"tokenizer.type=NullTokenizer", "model.vocab_size=200"}});
}

TEST_CASE("latent attention has its own sizes, and what it cannot do is refused") {
  const auto latent = [](Overrides more = {}) {
    Overrides set{"model.multi_latent_attention=true", "model.num_query_groups=8"};
    set.insert(set.end(), more.begin(), more.end());
    return set;
  };
  const char *on = "model.multi_latent_attention", *groups = "model.num_query_groups";
  expect_accepts({.what = "its defaults", .set = latent()});
  expect_accepts({.what = "Megatron's names",
                  .set = latent({"model.qk_head_dim=32", "model.qk_pos_emb_head_dim=16"})});
  expect_accepts({.what = "heads that do not divide the width",
                  .set = {on + std::string("=true"), "model.num_attention_heads=12",
                          "model.num_query_groups=12"}});
  expect_error({.what = "sizes alone", .set = {"model.kv_lora_rank=64"}}, "model.kv_lora_rank",
               "multi_latent_attention is false");
  expect_accepts(
      {.what = "their defaults alone, as in the saved recipes of other models",
       .set = {"model.q_lora_rank=none", "model.kv_lora_rank=512", "model.qk_nope_head_dim=128",
               "model.qk_rope_head_dim=64", "model.v_head_dim=128"}});
  expect_error({.what = "shared heads", .set = {on + std::string("=true")}}, groups,
               "each of the 8 query heads has keys, not 4");
  expect_error({.what = "odd", .set = latent({"model.qk_rope_head_dim=15"})},
               "model.qk_rope_head_dim", "odd");
  expect_error({.what = "layers without positions", .set = latent({"model.no_rope_freq=4"})},
               "model.position_embedding", "in every layer");
  expect_error({.what = "a part", .set = latent({"model.rotary_percent=0.5"})},
               "model.rotary_percent", "qk_rope_head_dim");
  expect_error({.what = "another size", .set = latent({"model.kv_channels=96"})},
               "model.kv_channels", "has 128 + 64 elements");
  expect_resolved({.what = "another epsilon", .set = latent({"model.norm_epsilon=1e-5"})},
                  "model.norm_epsilon", "the norms of latents add 1e-06");
  expect_error({.what = "a huge latent",
                .set = latent({"model.kv_lora_rank=1000000", "model.v_head_dim=4096",
                               "model.num_layers=100000", "train.steps=1",
                               "model.num_attention_heads=1024", "model.num_query_groups=1024"})},
               "model.num_layers", "values of the weights of attention");
  expect_accepts({.what = "a GPU", .set = latent({"train.device=cuda"})});
  expect_error({.what = "biases", .set = latent({"model.add_qkv_bias=true"})}, on, "biases");
  const std::string up = "recompute.modules=[mla_up_proj]", a2a = "distributed.cp_comm_type=a2a";
  expect_no_warning({.what = "its heads", .set = latent({"recompute=selective", up})});
  expect_no_warning({.what = "a ring",
                     .world = 2,
                     .set = latent({"recompute=selective", up, "distributed.cp_size=2"})});
  expect_error({.what = "exchanged heads",
                .world = 2,
                .set = latent({"recompute=selective", up, "distributed.cp_size=2", a2a})},
               "recompute.modules", "mla_up_proj saves nothing");
  expect_accepts({.what = "exchanged heads, with the core",
                  .world = 2,
                  .set = latent({"recompute=selective", "recompute.modules=[mla_up_proj,core_attn]",
                                 "distributed.cp_size=2", a2a})});
  expect_accepts({.what = "adapters", .set = latent({"peft.dim=4"})});
}

TEST_CASE("multi-token prediction refuses what it cannot do") {
  const auto further = [](Overrides more = {}) {
    Overrides set{"model.mtp_num_layers=2"};
    set.insert(set.end(), more.begin(), more.end());
    return set;
  };
  const char* field = "model.mtp_num_layers";
  expect_accepts({.what = "its defaults", .set = further()});
  expect_accepts({.what = "Hugging Face's name", .set = {"model.num_nextn_predict_layers=1"}});
  expect_accepts(
      {.what = "a repeated layer", .set = further({"model.mtp_use_repeated_layer=true"})});
  expect_warning({.what = "a factor alone", .set = {"model.mtp_loss_scaling_factor=0.3"}},
                 "model.mtp_loss_scaling_factor", "mtp_num_layers is 0");
  expect_accepts(
      {.what = "a factor that is the usual one", .set = {"model.mtp_loss_scaling_factor=0.1"}});
  expect_accepts({.what = "recomputation of all layers, its own included",
                  .set = further({"recompute=full", "recompute.method=block", "model.num_layers=4",
                                  "recompute.num_layers=6"})});
  expect_error({.what = "learned positions", .set = further({"model.architecture=gpt2"})}, field,
               "position_embedding: learned");
  expect_accepts(
      {.what = "8 bits", .set = further({"mixed_precision.fp8=hybrid", "debug.emulate_fp8=true"})});
  expect_resolved({.what = "adapters", .set = further({"peft.dim=4"})}, "peft.target_modules",
                  "are frozen and get no adapters");
}

TEST_CASE("batches and the learning rate's schedule must fit the run") {
  expect_error({.what = "batch", .set = {"train.global_batch_size=5", "train.micro_batch_size=2"}},
               "train.global_batch_size", "not a multiple");
  expect_error(
      {.what = "batch smaller", .set = {"train.global_batch_size=2", "train.micro_batch_size=4"}},
      "train.global_batch_size", "");
  expect_warning({.what = "a short run", .set = {"train.steps=10", "lr_scheduler.warmup_steps=10"}},
                 "lr_scheduler.warmup_steps", "10 is clipped to 9");
  expect_error(
      {.what = "warm-up", .set = {"lr_scheduler.decay_steps=10", "lr_scheduler.warmup_steps=10"}},
      "lr_scheduler.warmup_steps", "10");
  expect_accepts(
      {.what = "warm-up fits", .set = {"train.steps=10", "lr_scheduler.warmup_steps=9"}});
  expect_error({.what = "min_lr", .set = {"lr_scheduler.min_lr=1"}}, "lr_scheduler.min_lr",
               "above");
  expect_error({.what = "lr zero", .set = {"optimizer.lr=0"}}, "optimizer.lr", "range");
  expect_error({.what = "betas", .set = {"optimizer.betas=[0.9,1]"}}, "optimizer.betas", "range");
  expect_accepts({.what = "betas zero", .set = {"optimizer.betas=[0,0]"}});
  expect_error({.what = "wsd", .set = {"lr_scheduler.style=WSD"}}, "lr_scheduler.wsd_decay_steps",
               "needs");
  expect_error({.what = "wsd steps elsewhere", .set = {"lr_scheduler.wsd_decay_steps=3"}},
               "lr_scheduler.wsd_decay_steps", "style is cosine");
  expect_error({.what = "wsd too long",
                .set = {"lr_scheduler.style=wsd", "lr_scheduler.decay_steps=10",
                        "lr_scheduler.warmup_steps=4", "lr_scheduler.wsd_decay_steps=7"}},
               "lr_scheduler.wsd_decay_steps", "longer");
  expect_warning({.what = "wsd in a short run",
                  .set = {"lr_scheduler.style=wsd", "train.steps=10", "lr_scheduler.warmup_steps=4",
                          "lr_scheduler.wsd_decay_steps=7"}},
                 "lr_scheduler.wsd_decay_steps", "7 is clipped to 6");
  expect_accepts({.what = "wsd fits",
                  .set = {"lr_scheduler.style=wsd", "train.steps=10", "lr_scheduler.warmup_steps=4",
                          "lr_scheduler.wsd_decay_steps=6"}});
}

TEST_CASE("recomputation must say what, and find something to recompute") {
  expect_error({.what = "method without full", .set = {"recompute.method=block"}},
               "recompute.method", "none");
  expect_error(
      {.what = "block without number", .set = {"recompute=full", "recompute.method=block"}},
      "recompute.num_layers", "needs");
  expect_error({.what = "too many layers", .set = {"recompute=full", "recompute.num_layers=9"}},
               "recompute.num_layers", "9");
  expect_accepts({.what = "all layers", .set = {"recompute=full", "recompute.num_layers=8"}});
  expect_error({.what = "no modules", .set = {"recompute=selective", "recompute.modules=[]"}},
               "recompute.modules", "");
  expect_no_warning({.what = "modules",
                     .set = {"recompute=selective", "recompute.modules=[core_attn,mlp,norms]"}});
  expect_resolved({.what = "norms", .set = {"recompute=selective", "recompute.modules=[norms]"}},
                  "recompute.modules", "never kept");
  expect_warning({.what = "norms of outputs",
                  .set = {"model.norm_placement=post", "recompute=selective",
                          "recompute.modules=[norms,mlp]"}},
                 "recompute.modules", "layernorm has nothing to recompute");
  for (const char* module : {"moe", "moe_act", "shared_experts", "mla_up_proj"})
    expect_warning(
        {.what = module,
         .set = {"recompute=selective", std::string("recompute.modules=[mlp,") + module + "]"}},
        "recompute.modules", std::string(module) + " has nothing to recompute");
  expect_warning(
      {.what = "modules that nobody reads", .set = {"recompute=full", "recompute.modules=[mlp]"}},
      "recompute.modules", "granularity is full");
  expect_accepts(
      {.what = "activation_checkpointing", .set = {"distributed.activation_checkpointing=true"}});
}

TEST_CASE("attention scores have one multiplier") {
  expect_error(
      {.what = "two", .set = {"model.architecture=granite", "model.query_pre_attn_scalar=64"}},
      "model.attention_multiplier", "both set the factor of attention scores");
  expect_accepts({.what = "its own", .set = {"model.architecture=granite"}});
}

TEST_CASE("weight decay is decoupled under adamw, and under adam as its setting says") {
  expect_error({.what = "adamw with L2", .set = {"optimizer.decoupled_weight_decay=false"}},
               "optimizer.decoupled_weight_decay", "adamw is Adam with decoupled");
  const auto decoupled = [](const Overrides& set) {
    Diagnostics diagnostics;
    const Recipe r =
        load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, diagnostics, 1);
    CHECK_FALSE(diagnostics.has_errors());
    return make_plan(r, 1, 512).optimizer.decoupled_decay;
  };
  CHECK(decoupled({}));
  CHECK(decoupled({"optimizer.name=adam"}));
  CHECK_FALSE(decoupled({"optimizer.name=adam", "optimizer.decoupled_weight_decay=false"}));
  CHECK_FALSE(decoupled({"optimizer.optimizer=adam", "optimizer.no_decoupled_weight_decay=true"}));
}

TEST_CASE("types of outputs, inputs and messages report their effect") {
  const Overrides bf16{"mixed_precision=bf16_mixed"}, fp32{"mixed_precision=fp32"};
  const auto set = [](Overrides o, const char* name, const char* value) {
    o.push_back(fmt::format("distributed.{}={}", name, value));
    return o;
  };
  const char *output = "mp_policy.output_dtype", *message = "pipeline.dtype";
  expect_no_warning({.what = "as the weights", .set = set(bf16, output, "bfloat16")});
  expect_resolved({.what = "fp32 logits", .set = set(bf16, output, "float32")},
                  "distributed.mp_policy.output_dtype", "reads logits in fp32");
  expect_resolved({.what = "rounded logits", .set = set(fp32, output, "bfloat16")},
                  "distributed.mp_policy.output_dtype", "rounded to bf16");
  expect_resolved(
      {.what = "fp32 messages", .world = 4, .set = pipeline(set(bf16, output, "float32"))},
      "distributed.mp_policy.output_dtype", "stages exchange");
  expect_resolved({.what = "inputs", .set = set(bf16, "mp_policy.cast_forward_inputs", "false")},
                  "distributed.mp_policy.cast_forward_inputs", "false has no effect");
  expect_warning({.what = "wider", .world = 4, .set = pipeline(set(bf16, message, "float32"))},
                 "distributed.pipeline.dtype", "twice the bytes");
  expect_warning({.what = "shorter", .world = 4, .set = pipeline(set(fp32, message, "bfloat16"))},
                 "distributed.pipeline.dtype", "rounded to bf16");
  expect_no_warning({.what = "alike", .world = 4, .set = pipeline(set(fp32, message, "float32"))});
}

TEST_CASE("precision is set in one place") {
  expect_error({.what = "policy",
                .set = {"distributed.mp_policy.param_dtype=fp32", "mixed_precision=bf16_mixed"}},
               "distributed.mp_policy.param_dtype", "disagrees");
  expect_resolved(
      {.what = "policy alone decides", .set = {"distributed.mp_policy.param_dtype=torch.float32"}},
      "mixed_precision.name", "fp32");
  expect_error({.what = "params_dtype", .set = {"mixed_precision=fp32", "model.params_dtype=bf16"}},
               "mixed_precision.params_dtype", "disagrees");
  expect_error({.what = "reduce",
                .set = {"distributed.mp_policy.reduce_dtype=bf16",
                        "mixed_precision.grad_reduce_in_fp32=true"}},
               "distributed.mp_policy.reduce_dtype", "disagrees");
  expect_error({.what = "loss scale", .set = {"mixed_precision.loss_scale=1024"}},
               "mixed_precision.loss_scale", "");
  expect_accepts(
      {.what = "dynamic", .set = {"mixed_precision=fp16_mixed", "optimizer.loss_scale=dynamic"}});
  expect_accepts({.what = "Megatron's names",
                  .set = {"mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=4294967296",
                          "optimizer.min_loss_scale=1", "optimizer.loss_scale_window=1000",
                          "optimizer.hysteresis=2"}});
  expect_warning({.what = "no fp16", .set = {"optimizer.hysteresis=2"}},
                 "mixed_precision.hysteresis", "ignored");
  expect_warning({.what = "fixed",
                  .set = {"mixed_precision={name: fp16_mixed, loss_scale: 8, min_loss_scale: 2}"}},
                 "mixed_precision.min_loss_scale", "ignored");
  expect_error({.what = "begins below its least",
                .set = {"mixed_precision={name: fp16_mixed, initial_loss_scale: 1, "
                        "min_loss_scale: 2}"}},
               "mixed_precision.initial_loss_scale", "below min_loss_scale 2");
  expect_error({.what = "fp16 weights alone",
                .set = {"mixed_precision=fp16_mixed", "optimizer.master_weights=false"}},
               "optimizer.master_weights", "too coarse");
  expect_error({.what = "unscaled gradients in fp16",
                .world = 2,
                .set = {"distributed.strategy=fsdp2", "mixed_precision=bf16_mixed",
                        "distributed.mp_policy.reduce_dtype=float16"}},
               "distributed.mp_policy.reduce_dtype", "would become 0");
}

TEST_CASE("a class of Hydra that mtrain does not know is refused with the native way") {
  expect_error({.what = "override", .set = {"model._target_=x"}}, "model._target_",
               "runs no Python");
  expect_warning({.what = "how to construct", .set = {"model._recursive_=false"}},
                 "model._recursive_", "no class is constructed");
}

TEST_CASE("Hugging Face forms need checkpoints to be made from") {
  for (const char* which : {"final", "every"})
    expect_no_warning(
        {.what = which, .set = {std::string("checkpoint.save_consolidated=") + which}});
  expect_no_warning({.what = "every, without the last",
                     .set = {"checkpoint.save_consolidated=every", "checkpoint.at_end=false",
                             "checkpoint.every_steps=5"}});
  expect_error({.what = "final, without the last",
                .set = {"checkpoint.save_consolidated=final", "checkpoint.at_end=false",
                        "checkpoint.every_steps=5"}},
               "checkpoint.save_consolidated", "at_end: false");
  expect_warning({.what = "no checkpoint",
                  .set = {"checkpoint.save_consolidated=every", "checkpoint.at_end=false"}},
                 "checkpoint.save_consolidated", "no checkpoint is saved");
  expect_no_warning({.what = "with training",
                     .set = {"checkpoint.save_consolidated=every", "checkpoint.async=true",
                             "checkpoint.every_steps=5"}});
  expect_warning({.what = "disabled",
                  .set = {"checkpoint.save_consolidated=true", "checkpoint.enabled=false"}},
                 "checkpoint.save_consolidated", "checkpoint.enabled is false");
  expect_error({.what = "strict",
                .set = {"checkpoint.save_consolidated=true", "checkpoint.enabled=false",
                        "debug.strict=true"}},
               "checkpoint.save_consolidated", "checkpoint.enabled is false");
}

TEST_CASE("settings of Muon and of groups that say nothing or contradict each other are refused") {
  expect_accepts({.what = "muon", .set = {"optimizer.name=muon", "optimizer.muon.ns_steps=3"}});
  expect_accepts({.what = "a group of AdamW",
                  .set = {"optimizer.name=muon",
                          "optimizer.groups=[{match: 'router|gate', name: adamw, lr: 1e-3}]"}});
  expect_error({.what = "muon's settings without it", .set = {"optimizer.muon.momentum=0.9"}},
               "optimizer.muon.momentum", "name is adamw");
  expect_error({.what = "momentum under another name", .set = {"optimizer.momentum=0.9"}},
               "optimizer.muon.momentum", "written as optimizer.momentum");
  expect_error({.what = "momentum under another name", .set = {"optimizer.momentum=0.9"}},
               "optimizer.muon.momentum", "name is adamw, which has betas instead");
  for (const char* eps : {"0", "1e-40", "nan"})
    expect_error(
        {.what = eps, .set = {"optimizer.name=muon", fmt::format("optimizer.muon.eps={}", eps)}},
        "optimizer.muon.eps", "");
  expect_accepts({.what = "eps", .set = {"optimizer.name=muon", "optimizer.muon.eps=1e-30"}});
  expect_error({.what = "coefficients",
                .set = {"optimizer.name=muon", "optimizer.muon.coefficients=[1,2,3,4,5,6]"}},
               "optimizer.muon.coefficients", "6 numbers for 5 steps");
  expect_error({.what = "no master weights",
                .set = {"optimizer.name=muon", "optimizer.master_weights=false"}},
               "optimizer.master_weights", "fp32 master weights");
  expect_error({.what = "bf16 moments", .set = {"optimizer.name=muon", "optimizer.moments=bf16"}},
               "optimizer.moments", "fp32");
  expect_error({.what = "a group's name", .set = {"optimizer.groups=[{match: x, name: muon}]"}},
               "optimizer.groups", "name is adamw");
  for (const char* name : {"dist_muon", "adam"})
    expect_error({.what = name,
                  .set = {"optimizer.name=muon",
                          fmt::format("optimizer.groups=[{{match: x, name: {}}}]", name)}},
                 "optimizer.groups", "under muon a group may only have name adamw");
  for (const auto& [group, gist] : std::vector<std::pair<const char*, const char*>>{
           {"{lr: 1}", "needs `match`"},
           {"{match: '(', lr: 1}", "not a regular expression"},
           {"{match: x, lr: 1, lr_scale: 2}", "set the same"},
           {"{match: x}", "changes nothing"},
           {"{match: x, weight_deca: 1, lr: fast}", "there is no key `weight_deca`; lr: "},
           {"{match: x, lr: -1}", "lr: "},
           {"x", "expected a list of groups"}})
    expect_error({.what = group, .set = {fmt::format("optimizer.groups=[{}]", group)}},
                 "optimizer.groups", gist);
}

}  // namespace plan_rules_test
