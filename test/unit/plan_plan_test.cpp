// Tests the sizes of published models, the costs of pipeline schedules, and planned memory.
#include <map>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "base/matmul_workspace.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/logits_rows.h"
#include "plan/meeting_plan.h"
#include "plan/run_plan.h"
#include "plan/saved_recipe.h"
#include "plan/schedule_bounds.h"
#include "test/support/temporary_folder.h"

namespace plan_plan_test {

using namespace mtrain;
using namespace mtrain::plan;
using Name = ScheduleId;

namespace {

Recipe ready(const std::string& name, int64_t world, const std::vector<std::string>& more = {}) {
  Diagnostics diagnostics;
  const Recipe r =
      load_recipe(interchange::model_source(), MTRAIN_SOURCE_DIR "/recipes/" + name + ".yaml", more,
                  diagnostics, world);
  diagnostics.throw_if_errors();
  return r;
}

}  // namespace

TEST_CASE("published models have their published number of parameters") {
  struct Published {
    const char* recipe;
    int64_t world;
    double total;
  };
  // From the models' cards and safetensors indices.
  for (const auto& p : {Published{"gpt2_124m", 1, 124439808},
                        {"llama3_8b", 64, 8030261248},
                        {"llama3_70b", 256, 70553706496},
                        {"llama3_1_405b", 16384, 405853388800},
                        {"qwen3_8b", 32, 8190735360},
                        {"gemma2_2b", 16, 2614341888},
                        {"gemma3_1b", 8, 999885952},
                        {"olmo2_7b", 32, 7298617344},
                        {"smollm3_3b", 16, 3075098624},
                        {"seed_oss_36b", 64, 36151104512},
                        {"granite3_8b", 32, 8170848256},
                        {"qwen3_30b_a3b", 64, 30532122624},
                        {"deepseek_v2_lite", 8, 15706484224},
                        {"moonlight_16b_a3b", 8, 15960108544},
                        {"deepseek_v3", 2048, 671026404352},
                        {"kimi_k2", 512, 1026408209408},
                        {"mixtral_8x7b", 64, 46702792704}}) {
    CAPTURE(p.recipe);
    Recipe r = ready(p.recipe, p.world);
    r.model.mtp_num_layers = 0;  // the cards do not count layers that predict further tokens
    CHECK(make_plan(r, 0, r.model.vocab_size).parameters.total() == p.total);
  }
}

TEST_CASE("a mixture of experts costs what a token meets") {
  const Recipe r = ready("qwen3_30b_a3b", 64);
  const ModelParameters p = make_plan(r, 0, r.model.vocab_size).parameters;
  CHECK(p.active() / 1e9 == Approx(3.35).epsilon(0.01));  // "3.3B activated"
  CHECK(p.moe_layers == 48);
}

TEST_CASE("chunks in flight and idle time, against a simulator") {
  // F = I = W = 1, no communication: the figures of a separate simulator.
  struct Case {
    Name schedule;
    int64_t pp, chunks, micro_batches;
    double idle_over_busy;
    std::vector<int64_t> in_flight;
    bool moe_overlap = false;
  };
  for (const auto& c : std::vector<Case>{
           {Name::gpipe, 4, 1, 8, 0.375, {8, 8, 8, 8}},
           {Name::one_f_one_b, 4, 1, 8, 0.375, {4, 3, 2, 1}},
           {Name::zero_bubble, 4, 1, 8, 0.125, {4, 4, 4, 4}},
           {Name::interleaved_1f1b, 4, 2, 8, 0.1875, {11, 9, 7, 5}},
           {Name::interleaved_1f1b, 4, 4, 8, 0.09375, {19, 17, 15, 13}},
           {Name::interleaved_1f1b, 4, 2, 8, 0.1875, {12, 10, 8, 6}, true},
           {Name::looped_bfs, 4, 2, 8, 0.1875, {16, 16, 16, 16}},
           {Name::zero_bubble, 4, 2, 8, 0.0625, {8, 8, 8, 8}},
           {Name::v_schedule, 4, 2, 8, 0.0625, {8, 8, 8, 8}},
           {Name::dualpipev, 4, 2, 8, 0.125, {9, 9, 9, 9}},
           {Name::gpipe, 4, 1, 16, 0.1875, {16, 16, 16, 16}},
           {Name::one_f_one_b, 8, 1, 32, 0.21875, {8, 7, 6, 5, 4, 3, 2, 1}},
           {Name::zero_bubble, 8, 1, 32, 0.0729166667, {8, 8, 8, 8, 8, 8, 8, 8}},
           {Name::interleaved_1f1b, 8, 4, 32, 0.0546875, {39, 37, 35, 33, 31, 29, 27, 25}},
           {Name::v_schedule, 8, 2, 32, 0.0364583333, std::vector<int64_t>(8, 16)},
           {Name::dualpipev, 8, 2, 32, 0.0729166667, std::vector<int64_t>(8, 17)}}) {
    CAPTURE(enum_name(c.schedule), c.pp, c.chunks, c.micro_batches);
    const ScheduleShape shape{c.schedule, c.pp, c.chunks, c.micro_batches, c.pp, c.moe_overlap};
    for (int64_t rank = 0; rank < c.pp; ++rank)
      CHECK(chunks_in_flight(shape, rank) == c.in_flight[size_t(rank)]);
    CHECK(bubble_fraction(shape) == Approx(c.idle_over_busy / (1 + c.idle_over_busy)));
  }
}

TEST_CASE("every stage has one rank") {
  for (const Name s : {Name::interleaved_1f1b, Name::v_schedule}) {
    std::vector<int> seen(8);
    for (int64_t rank = 0; rank < 4; ++rank)
      for (const int64_t stage : stages_of_rank({s, 4, 2, 8}, rank)) ++seen[size_t(stage)];
    CHECK(seen == std::vector<int>(8, 1));
  }
}

TEST_CASE("sharded parts shrink with the ranks, and the sum over a pipeline is the model") {
  const auto memory = [](const std::vector<std::string>& more, int64_t world) {
    const Recipe r = ready("llama3_8b", world, more);
    return make_plan(r, world, r.model.vocab_size).fullest();
  };
  const std::vector<std::string> whole{"distributed.strategy=ddp",
                                       "distributed.tp_size=1",
                                       "~distributed.sequence_parallel",
                                       "~comm_overlap",
                                       "~ddp",
                                       "train.global_batch_size=128"};
  auto sharded = whole;
  sharded[0] = "distributed.strategy=fsdp2";
  const MemoryEstimate one = memory(whole, 8), eight = memory(sharded, 8);
  CHECK(eight.params == Approx(one.params / 8));
  CHECK(eight.optimizer == Approx(one.optimizer / 8));
  CHECK(eight.buffers > 0);
  // Rotary tables of all positions, and tokens, labels and positions of 16 micro-batches.
  CHECK(one.buffers == 4.0 * 8192 * (128 + 3 * 16) + 512);
  CHECK(one.parameters >= 8.03e9);

  const Recipe r = ready("llama3_70b", 256);
  const RunPlan plan = make_plan(r, 256, r.model.vocab_size);
  double parameters = 0;
  for (const MemoryEstimate& rank : plan.memory)
    parameters += rank.parameters * double(plan.layout.tp);
  // Every tp rank has the full norms, and the vocabulary is padded.
  CHECK(parameters == Approx(70.55e9).epsilon(0.002));
}

TEST_CASE("only a plan for a GPU reports CUDA graphs and sets an environment") {
  for (const bool gpu : {false, true}) {
    const Recipe r = ready("quickstart", 1, {gpu ? "train.device=cuda" : "train.device=cpu"});
    const RunPlan plan = make_plan(r, 1, 257);
    CHECK((plan.device.kind == DeviceKind::cuda) == gpu);
    CHECK(plan.graphs.known == gpu);
    CHECK(plan.device.environment.contains("CUDA_DEVICE_MAX_CONNECTIONS") == gpu);
  }
}

TEST_CASE("several ranks load all kernels before the first may wait for another rank") {
  for (const int64_t world : {1, 2})
    for (const bool gpu : {false, true}) {
      const Recipe r = ready("quickstart", world, {gpu ? "train.device=cuda" : "train.device=cpu"});
      const auto& set = make_plan(r, world, 257).device.environment;
      REQUIRE(set.contains("CUDA_MODULE_LOADING") == (gpu && world > 1));
      if (gpu && world > 1) CHECK(set.at("CUDA_MODULE_LOADING") == "EAGER");
      CHECK(meeting_plan(r, world).device.environment == set);
    }
}

TEST_CASE("ranks whose graphs contain calls of NCCL may launch such a call without a graph, too") {
  for (const bool named : {false, true}) {
    std::vector<std::string> set{"train.device=cuda", "distributed.tp_size=2",
                                 "distributed.strategy=megatron_ddp"};
    if (named) set.push_back("train.enable_cuda_graph=true");
    const Recipe r = ready("quickstart", 2, set);
    const auto& environment = make_plan(r, 2, 257).device.environment;
    CHECK(environment.contains("NCCL_GRAPH_REGISTER") == named);
    CHECK(meeting_plan(r, 2).device.environment == environment);
  }
}

TEST_CASE("the precision decides what computes, and in which type gradients travel") {
  struct Case {
    std::vector<std::string> set;
    DType compute, reduce;
  };
  const std::string fsdp2 = "distributed.strategy=fsdp2", ddp = "distributed.strategy=ddp",
                    fp16 = "mixed_precision=fp16_mixed",
                    half = "distributed.mp_policy.param_dtype=float16";
  for (const Case& c : std::vector<Case>{
           {{"mixed_precision=fp32", ddp}, DType::f32, DType::f32},
           {{"mixed_precision=bf16_mixed", ddp}, DType::bf16, DType::f32},
           {{fp16, ddp}, DType::f16, DType::f32},
           {{fp16, ddp, "ddp.grad_reduce_in_fp32=false"}, DType::f16, DType::f16},
           {{fp16, fsdp2}, DType::f16, DType::f16},
           {{half, fsdp2, "distributed.mp_policy.reduce_dtype=float32"}, DType::f16, DType::f32},
           {{half, fsdp2, "distributed.mp_policy.reduce_dtype=float16"}, DType::f16, DType::f16},
           {{half, fsdp2, "distributed.mp_policy.reduce_dtype=bfloat16"},
            DType::f16,
            DType::bf16}}) {
    CAPTURE(c.set);
    std::vector<std::string> set = c.set;
    set.push_back("dataset.train=unused");
    Diagnostics diagnostics;
    const Recipe r = load_recipe_text(interchange::model_source(), "model: {num_layers: 2}\n",
                                      "types", set, diagnostics, 2);
    diagnostics.throw_if_errors();
    const RunPlan plan = make_plan(r, 2, 257);
    CHECK(plan.compute_dtype == c.compute);
    CHECK(plan.pipeline.dtype == c.compute);
    CHECK(plan.data_parallel.reduce.dtype == c.reduce);
    CHECK(plan.loss_scale.on == (c.compute == DType::f16));
  }
}

TEST_CASE("a resumed run may learn at another rate, and neither see other data nor be wider") {
  const TemporaryFolder folder;
  const auto path = folder / "recipe.yaml";
  write_file_atomic(path, make_plan(ready("quickstart", 1), 1, 257).text.recipe_with_origins);
  const auto differences = [&](const std::vector<std::string>& changes) {
    return resume_differences(interchange::model_source(), {path},
                              make_plan(ready("quickstart", 1, changes), 1, 257).text.recipe);
  };
  CHECK(differences({}).empty());
  CHECK(differences({"optimizer.lr=5e-3", "train.steps=77", "train.threads=3"}).empty());
  CHECK_THAT(differences({"train.seed=77", "model.ffn_hidden_size=96"}),
             Catch::Contains("train.seed: saved with 1234, now 77") &&
                 Catch::Contains("model.ffn_hidden_size: saved with"));
  CHECK_THAT(differences({"optimizer.name=muon"}),
             Catch::Contains("optimizer.name: saved with adamw, now muon"));
  CHECK(differences({"optimizer.name=adam", "optimizer.groups=[{match: down, lr: 1e-3}]"}).empty());
}

TEST_CASE("blockwise Muon warns at each start, and resumes under its tp_size alone") {
  const std::string muon = "optimizer.name=muon", blockwise = "optimizer.muon.tp_mode=blockwise",
                    tp_2 = "distributed.tp_size=2", tp_4 = "distributed.tp_size=4";
  const std::vector<std::string> base{"distributed.strategy=fsdp2", "train.global_batch_size=16"};
  const auto on_base = [&](std::vector<std::string> changes) {
    changes.insert(changes.begin(), base.begin(), base.end());
    return changes;
  };
  const auto warned = [&](const std::vector<std::string>& changes) {
    Diagnostics diagnostics;
    load_recipe(interchange::model_source(), MTRAIN_SOURCE_DIR "/recipes/quickstart.yaml",
                on_base(changes), diagnostics, 4);
    return diagnostics.text(recipe::Severity::warning).find("optimizer.muon.tp_mode") !=
           std::string::npos;
  };
  CHECK(warned({muon, blockwise, tp_2}));
  CHECK_FALSE(warned({muon, blockwise}));
  CHECK_FALSE(warned({muon, tp_2}));
  const TemporaryFolder folder;
  const auto path = folder / "recipe.yaml";
  const auto text = [&](const std::vector<std::string>& changes) {
    return make_plan(ready("quickstart", 4, on_base(changes)), 4, 257).text;
  };
  const auto differences = [&](const std::vector<std::string>& saved,
                               const std::vector<std::string>& now) {
    write_file_atomic(path, text(saved).recipe_with_origins);
    return resume_differences(interchange::model_source(), {path}, text(now).recipe);
  };
  CHECK(differences({muon, blockwise, tp_2}, {muon, blockwise, tp_2}).empty());
  CHECK_THAT(
      differences({muon, blockwise, tp_2}, {muon, blockwise, tp_4}),
      Catch::Contains("distributed.tp_size: saved with 2, now 4") && Catch::Contains("gathered"));
  CHECK_FALSE(differences({muon, blockwise}, {muon, blockwise, tp_2}).empty());
  CHECK(differences({muon, blockwise, tp_2}, {muon, tp_4}).empty());
  CHECK(differences({muon, tp_2}, {muon, tp_4}).empty());
  const std::string experts = "model.moe.num_experts=8", expert_tp = "distributed.expert_tp_size=";
  CHECK(differences({muon, blockwise, tp_2, experts},
                    {muon, blockwise, tp_2, experts, expert_tp + "2"})
            .empty());
  CHECK_THAT(differences({muon, blockwise, tp_2, experts},
                         {muon, blockwise, tp_2, experts, expert_tp + "1",
                          "distributed.sequence_parallel=true"}),
             Catch::Contains("distributed.expert_tp_size: saved with 2, now 1"));
}

TEST_CASE("a resumed run says which settings have changed, and not where its files are") {
  const TemporaryFolder folder;
  const auto path = folder / "recipe.yaml";
  write_file_atomic(path, make_plan(ready("quickstart", 1), 1, 257).text.recipe_with_origins);
  const auto changes = [&](const std::vector<std::string>& overrides) {
    return resume_changes(interchange::model_source(), {path},
                          make_plan(ready("quickstart", 1, overrides), 1, 257).text.recipe);
  };
  CHECK(changes({}).empty());
  CHECK(changes({"train.run_dir=elsewhere", "checkpoint.load=latest"}).empty());
  CHECK_THAT(changes({"optimizer.lr=5e-3", "train.threads=3"}),
             Catch::Contains("optimizer.lr 0.002 -> 0.005") && Catch::Contains("train.threads ") &&
                 !Catch::Contains("seed"));
}

TEST_CASE("a resumed run may balance experts differently, if its checkpoint has the state") {
  const TemporaryFolder folder;
  const auto path = folder / "recipe.yaml";
  const auto text = [](const std::vector<std::string>& changes) {
    return make_plan(ready("quickstart_experts", 1, changes), 1, 257).text;
  };
  const auto differences = [&](const std::vector<std::string>& saved,
                               const std::vector<std::string>& now) {
    write_file_atomic(path, text(saved).recipe_with_origins);
    return resume_differences(interchange::model_source(), {path}, text(now).recipe);
  };
  const std::string rate = "model.moe.router_bias_update_rate=",
                    coeff = "model.moe.aux_loss_coeff=",
                    global = "model.moe.load_balancing_type=global_aux_loss";
  CHECK(differences({}, {coeff + "1e-3", "model.moe.z_loss_coeff=0"}).empty());
  CHECK(differences({}, {coeff + "0"}).empty());
  CHECK(differences({rate + "1e-3"}, {rate + "1e-4"}).empty());
  CHECK(differences({global}, {global, coeff + "0.5"}).empty());
  CHECK_THAT(differences({rate + "1e-3"}, {}), Catch::Contains("router_bias_update_rate"));
  CHECK_THAT(differences({}, {rate + "1e-3"}), Catch::Contains("router_bias_update_rate"));
  const std::string bias = "model.moe.router_bias=true";
  CHECK(differences({bias}, {rate + "1e-3"}).empty());
  CHECK(differences({rate + "1e-3"}, {bias}).empty());
  CHECK_THAT(differences({bias}, {}), Catch::Contains("router_bias: saved with true, now false") &&
                                          !Catch::Contains("update_rate"));
  CHECK_THAT(differences({}, {bias}), Catch::Contains("router_bias"));
  CHECK_THAT(differences({global}, {global, coeff + "0"}), Catch::Contains("aux_loss_coeff"));
  CHECK_THAT(differences({}, {"model.moe.router_topk=3"}), Catch::Contains("router_topk"));
}

TEST_CASE("a GPU's logits exist in larger pieces than a CPU's, of 2 GiB as fp32 at most") {
  const auto total = [](const std::string& device, const std::string& tokens) {
    // Layers whose backward needs less memory than the head does before.
    const Recipe r = ready(
        "llama3_8b", 8,
        {"distributed.strategy=ddp", "distributed.tp_size=1", "~distributed.sequence_parallel",
         "~comm_overlap", "~ddp", "model.num_layers=2", "model.ffn_hidden_size=1024",
         "train.global_batch_size=128", "train.micro_batch_size=1", "recompute.cheap=true",
         "train.device=" + device, "dataset.seq_length=" + tokens});
    const MemoryEstimate m = make_plan(r, 8, r.model.vocab_size).fullest();
    return m.total() - m.nccl - m.workspace;
  };
  const double more = total("cuda", "4096") - total("cpu", "4096");
  CHECK(more > double(1ll << 29));
  CHECK(more < double(1ll << 30));
  // Twice the tokens are twice the pieces.
  CHECK(total("cuda", "8192") - total("cpu", "8192") <= more);
}

TEST_CASE("logits are split into chunks of equal size, of whole tiles if there are many rows") {
  constexpr int64_t V = 64;
  const auto rows = [](int64_t T, int64_t most) { return logits_rows(T, V, most * V * 4); };
  CHECK(rows(24, 24) == 24);
  CHECK(rows(24, 7) == 6);
  CHECK(rows(24, 1) == 1);
  CHECK(rows(2400, 1300) == 1280);
  CHECK(rows(1100, 1000) == 550);
}

TEST_CASE("a recipe chooses how many logits exist at once, and the plan says what all would take") {
  using Catch::Matchers::Contains;
  const auto plan = [](const std::string& setting) {
    const Recipe r =
        ready("llama3_8b", 1,
              {"distributed={strategy: ddp}", "~ddp", "~comm_overlap", "train.device=cuda",
               "train.micro_batch_size=8", "train.global_batch_size=8", "dataset.seq_length=1024",
               "model.num_layers=2", "model.ffn_hidden_size=1024", "recompute.cheap=true",
               "mixed_precision=bf16_mixed", "hardware.gpu=h100", setting});
    return make_plan(r, 1, 151936);
  };
  const RunPlan three = plan("train.logits_gb=auto"), all = plan("train.logits_gb=5");
  CHECK(three.logits_rows == 2816);
  CHECK_THAT(three.text.logits, Contains("3 chunks of 2816 tokens") &&
                                    Contains("train.logits_gb=5 ") && Contains("which fits"));
  CHECK(all.logits_rows == 8192);
  CHECK_THAT(all.text.logits, Contains("8192 tokens at once"));
  CHECK(plan("train.device=cpu").logits_rows < 1000);
  // Logits in 16 bits. The other parts of the plan do not change.
  const double more = (8192 - 2816) * 151936.0 * 2;
  CHECK(all.fullest().total() - three.fullest().total() <= more);
  CHECK(all.fullest().total() - three.fullest().total() > 0.9 * more);
  // The memory of the device does not decide: it would change the last bits of the gradient.
  const RunPlan large = plan("hardware.memory_gb=500"), small = plan("hardware.memory_gb=20");
  CHECK(large.logits_rows == three.logits_rows);
  CHECK(small.logits_rows == three.logits_rows);
  CHECK_THAT(small.text.logits, Contains("which does not fit"));
}

TEST_CASE("attention's heads travel in about four chunks of equal size") {
  CHECK(head_chunks(8) == 4);
  CHECK(head_chunks(6) == 3);
  CHECK(head_chunks(2) == 2);
  CHECK(head_chunks(7) == 7);
  CHECK(head_chunks(25) == 5);
  CHECK(head_chunks(1) == 1);
}

TEST_CASE("8-bit gradients that wait are planned in bf16 where they are multiplied in chunks") {
  const auto activations = [](const std::string& fp8, const std::string& overlap) {
    const Recipe r =
        ready("llama3_8b", 8,
              {"distributed.strategy=megatron_ddp", "distributed.tp_size=2",
               "distributed.sequence_parallel=true", "distributed.pp_size=2",
               "distributed.vpp_size=1", "distributed.pipeline.pp_schedule=zero_bubble",
               "train.global_batch_size=16", "train.micro_batch_size=1", "dataset.seq_length=4096",
               "~ddp", "train.device=cuda", "mixed_precision={name: bf16_mixed, fp8: " + fp8 + "}",
               "comm_overlap={tp_comm_overlap: " + overlap + "}"});
    return make_plan(r, 8, r.model.vocab_size).fullest().activations;
  };
  CHECK(activations("none", "true") == activations("none", "false"));
  CHECK(activations("hybrid", "true") > activations("hybrid", "false"));
  CHECK(activations("hybrid", "true") < activations("none", "true"));
}

TEST_CASE("outputs of norms and activations are kept where the memory of the GPU allows") {
  const auto planned = [](const std::vector<std::string>& more) {
    const Recipe r = ready("llama3_8b", 64, more);
    return make_plan(r, 64, r.model.vocab_size);
  };
  const std::string gpu = "train.device=cuda";
  const RunPlan again = planned({gpu, "recompute.cheap=true"}),
                kept = planned({gpu, "recompute.cheap=false"});
  CHECK(again.recompute.cheap);
  CHECK_FALSE(kept.recompute.cheap);
  CHECK(kept.fullest().activations > 1.2 * again.fullest().activations);
  CHECK(kept.fullest().params == again.fullest().params);
  // The device of just the size, and of a percent less.
  const double needed = kept.fullest().total() / 0.9 / 1e9;
  const auto with_memory = [&](double gb) {
    return planned({gpu, fmt::format("hardware.memory_gb={}", gb)});
  };
  const RunPlan fits = with_memory(1.01 * needed), does_not = with_memory(0.99 * needed);
  CHECK_FALSE(fits.recompute.cheap);
  CHECK(fits.fullest().total() == kept.fullest().total());
  CHECK(fits.text.recompute.find("activations kept: ") != std::string::npos);
  CHECK(does_not.recompute.cheap);
  CHECK(does_not.fullest().total() == again.fullest().total());
  CHECK(does_not.text.recompute.find("activations computed again, since with them ") !=
        std::string::npos);
  // The names of some GPUs contain their memory.
  for (const auto& [name, gb] : std::map<std::string, double>{{"NVIDIA A100-SXM4-40GB", 40},
                                                              {"NVIDIA H100 80GB HBM3", 80},
                                                              {"NVIDIA GB200", 0},
                                                              {"NVIDIA H200", 0}}) {
    CAPTURE(name);
    Diagnostics diagnostics;
    const Recipe r =
        load_recipe(interchange::model_source(), MTRAIN_SOURCE_DIR "/recipes/llama3_8b.yaml", {gpu},
                    diagnostics, 64, {.gpus = 1, .gpu_name = name});
    CHECK(r.hardware.memory_gb.value_or(0) == gb);
  }
  // The usual memory counts for a GPU that is recognized, not for one that is only treated like
  // another, nor for a part of one. Hosts compare recipes without the memory that a name states.
  const auto on = [&](const std::string& name) {
    Diagnostics diagnostics;
    const Recipe r =
        load_recipe(interchange::model_source(), MTRAIN_SOURCE_DIR "/recipes/llama3_8b.yaml",
                    {gpu, "train.micro_batch_size=1", "dataset.seq_length=512"}, diagnostics, 64,
                    {.gpus = 1, .gpu_name = name});
    return make_plan(r, 64, r.model.vocab_size);
  };
  for (const char* name : {"NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA A100-SXM4-80GB"}) {
    CAPTURE(name);
    CHECK_FALSE(on(name).recompute.cheap);
  }
  for (const char* name : {"NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3 MIG", ""}) {
    CAPTURE(name);
    CHECK(on(name).recompute.cheap);
  }
  CHECK(on("NVIDIA A100-SXM4-80GB").text.recipe == on("NVIDIA A100-PCIE").text.recipe);
  // The GPU's usual memory, unless it is given; that of a CPU is not known.
  CHECK(planned({gpu, "hardware.gpu=b300"}).recompute.cheap == (needed > 270));
  CHECK(planned({"train.device=cpu"}).recompute.cheap);
  CHECK_FALSE(planned({"train.device=cpu", "hardware.memory_gb=100000"}).recompute.cheap);
}

TEST_CASE("the plan of a GPU's memory has a GEMM's workspace, or attention's where that is more") {
  const auto plan = [](const std::string& device, const std::vector<std::string>& more) {
    std::vector<std::string> all{"distributed.strategy=fsdp2",
                                 "distributed.tp_size=1",
                                 "~distributed.sequence_parallel",
                                 "~comm_overlap",
                                 "~ddp",
                                 "model.num_layers=2",
                                 "train.global_batch_size=128",
                                 "train.micro_batch_size=1",
                                 "dataset.seq_length=4096",
                                 "train.device=" + device};
    all.insert(all.end(), more.begin(), more.end());
    const Recipe r = ready("llama3_8b", 8, all);
    return make_plan(r, 8, r.model.vocab_size).fullest();
  };
  const auto workspace = [&](const std::vector<std::string>& more) {
    const MemoryEstimate on_gpu = plan("cuda", more), on_cpu = plan("cpu", more);
    CHECK(on_cpu.workspace == 0);
    CHECK(on_gpu.total() - on_gpu.workspace - on_gpu.nccl ==
          on_gpu.params + on_gpu.grads + on_gpu.optimizer + on_gpu.activations + on_gpu.logits +
              on_gpu.buffers);
    return on_gpu.workspace;
  };
  // 32 query heads of 128, 8 of keys and values; (T, heads) in fp32, and (T, heads, 128).
  const double T = 4096, heads = T * 32, q = heads * 128, kv = T * 2 * 8 * 128;
  const MemoryEstimate own_attention = plan("cuda", {"debug.own_attention=true"});
  // out x dout, sums of dq in fp32, and dk and dv of each query head in 16 bits.
  const double plain = 4 * heads + 4 * q + 2 * 2 * q;
  CHECK(workspace({}) == plain);
  CHECK(workspace({"train.micro_batch_size=2"}) == 2 * plain);
  CHECK(workspace({"dataset.seq_length=131072"}) == 32 * plain);
  CHECK(workspace({"distributed.tp_size=4"}) == plain / 4);
  CHECK(workspace({"distributed.tp_size=8"}) == double(kMatmulWorkspace));  // an eighth is less
  // All scores in 16 bits: half of the heads at a time need less than the limit.
  CHECK(workspace({"debug.deterministic=true"}) == (4 * heads + 2 * heads * T + 4 * q) / 2);
  CHECK(own_attention.workspace == double(kMatmulWorkspace));  // not cuDNN's sums of dq
  CHECK(workspace({"mixed_precision=fp32"}) == double(kMatmulWorkspace));
  CHECK(workspace({"model.attn_logit_softcapping=50"}) == plain);
  CHECK(workspace({"mixed_precision=fp32", "train.micro_batch_size=16",
                   "dataset.seq_length=32768"}) == 8 * 16 * 4 * heads);
  // For packed documents: lse, contiguous gradients, and room for fp32 dk and dv of every query
  // head. Capped scores of packs are our own kernels'.
  CHECK(workspace({"packed_sequence.packed_sequence_size=4096"}) ==
        8 * heads + 4 * q + 2 * (q + kv) + 2 * 4 * q);
  CHECK(workspace({"packed_sequence.packed_sequence_size=1024", "train.micro_batch_size=4"}) ==
        8 * heads + 4 * q + 2 * (q + kv) + 2 * 4 * q);
  CHECK(workspace({"packed_sequence.packed_sequence_size=4096",
                   "model.attn_logit_softcapping=50"}) == double(kMatmulWorkspace));
  // Gradients of blocks of keys are added up: dq, dk and dv in 16 bits, and the lse.
  CHECK(workspace({"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}) ==
        (plain + 4 * heads + 2 * (q + kv)) / 2);
  // Exchanged heads, a fourth at a time.
  CHECK(workspace({"distributed.cp_size=2", "distributed.cp_comm_type=a2a",
                   "train.micro_batch_size=8"}) == 8 * plain / 2 / 4);
  // Ten heads of a rank are exchanged in two parts.
  CHECK(workspace({"distributed.cp_size=4", "distributed.cp_comm_type=a2a",
                   "train.micro_batch_size=8", "model.num_attention_heads=40",
                   "model.num_query_groups=40", "model.kv_channels=128"}) ==
        8 * T * 5 * (4 + 4 * 128));
}

TEST_CASE("the plan of Muon's memory has whole matrices beside what lives through the update") {
  // Few tokens: the update needs more than activations leave.
  const auto plan = [](int64_t world, const std::vector<std::string>& more) {
    std::vector<std::string> all{"distributed.strategy=fsdp2",
                                 "distributed.tp_size=1",
                                 "~distributed.sequence_parallel",
                                 "~comm_overlap",
                                 "~ddp",
                                 "model.num_layers=8",
                                 "model.vocab_size=512",
                                 "train.device=cuda",
                                 "train.global_batch_size=8",
                                 "train.micro_batch_size=1",
                                 "dataset.seq_length=64",
                                 "train.enable_cuda_graph=false",
                                 "optimizer.name=muon"};
    all.insert(all.end(), more.begin(), more.end());
    const Recipe r = ready("llama3_8b", world, all);
    return make_plan(r, world, r.model.vocab_size).fullest();
  };
  const std::string adamw = "optimizer.name=adamw",
                    whole = "distributed.reshard_after_forward=false";
  // Gathered parameters that stay.
  CHECK(plan(8, {}).buffers > 1.1 * plan(8, {adamw}).buffers);
  CHECK(plan(8, {whole}).buffers - plan(8, {}).buffers ==
        Approx(plan(8, {whole, adamw}).buffers - plan(8, {adamw}).buffers));
  CHECK(plan(8, {whole, adamw}).buffers > 1.5 * plan(8, {adamw}).buffers);
  // Graphs keep activations.
  const MemoryEstimate one = plan(1, {}), graphs = plan(1, {"train.enable_cuda_graph=true"});
  CHECK(graphs.buffers - one.buffers == Approx(graphs.activations + graphs.logits));
  // In bf16 an iteration of 4096 x 14336 elements holds 2.5 matrices of that size instead of 2.
  CHECK(plan(1, {"optimizer.muon.ns_dtype=bf16"}).buffers - one.buffers ==
        Approx(2.0 * 4096 * 14336));
  // The matrices of one group have both moments, and names decide how many they are.
  CHECK(one.optimizer < plan(1, {adamw}).optimizer);
  CHECK(plan(1, {"optimizer.groups=[{match: gate, name: adamw}]"}).optimizer ==
        plan(1, {adamw}).optimizer);
  CHECK(plan(1, {"optimizer.groups=[{match: gate, lr: 1e-3}]"}).optimizer == one.optimizer);
}

}  // namespace plan_plan_test
