#include "run/calibration_models.h"

#include <string>

#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/saved_recipe.h"

namespace mtrain::run {

namespace {

using Settings = std::vector<std::string>;

// A decoder; `samples` are the micro-batch's.
struct Sizes {
  int64_t hidden, heads, groups, ffn, seq, samples, vocab;
  int64_t layers = 2;
};

constexpr int64_t kMostForLayers = 8;  // ranks that share layers
constexpr int64_t kMicroBatches = 2;   // later ones add to the gradients of the first

RunPlan plan_of(const plan::Machine& machine, int64_t world, int64_t data_ranks, const Sizes& s,
                const Settings& more) {
  Settings all{fmt::format("model.hidden_size={}", s.hidden),
               fmt::format("model.num_attention_heads={}", s.heads),
               fmt::format("model.num_query_groups={}", s.groups),
               fmt::format("model.ffn_hidden_size={}", s.ffn),
               fmt::format("model.num_layers={}", s.layers),
               fmt::format("dataset.seq_length={}", s.seq),
               fmt::format("train.micro_batch_size={}", s.samples),
               fmt::format("train.global_batch_size={}", s.samples * kMicroBatches * data_ranks),
               "dataset.train=unused",
               "train.run_dir=unused",
               "train.steps=1000000",
               "mixed_precision=fp32"};
  all.insert(all.end(), more.begin(), more.end());
  return plan::saved_run_plan(
      interchange::model_source(),
      {.file = "the calibration's model", .text = "model: {}\n", .machine = machine}, all, world,
      s.vocab);
}

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings experts(int64_t count, int64_t ffn) {
  return {fmt::format("model.moe.num_experts={}", count),
          fmt::format("model.moe.ffn_hidden_size={}", ffn), "model.moe.router_topk=2"};
}

// Ranks that work alone have as many rows for each expert as the plan says.
Settings balanced(int64_t count, int64_t ffn) {
  return with(experts(count, ffn), {"debug.route=balanced"});
}

const Settings kTied{"model.share_embeddings_and_output_weights=true"},
    kBf16{"mixed_precision=bf16_mixed"}, kMuon{"optimizer.name=muon"};

struct Model {
  Sizes sizes;
  Settings more;
};

std::vector<Model> dense_models() {
  return {
      {{.hidden = 64, .heads = 4, .groups = 2, .ffn = 160, .seq = 48, .samples = 1, .vocab = 200},
       {}},
      {{.hidden = 96, .heads = 3, .groups = 3, .ffn = 320, .seq = 96, .samples = 3, .vocab = 700},
       kTied},
      {{.hidden = 160, .heads = 5, .groups = 5, .ffn = 448, .seq = 320, .samples = 1, .vocab = 300},
       {}},
      {{.hidden = 192,
        .heads = 6,
        .groups = 2,
        .ffn = 576,
        .seq = 160,
        .samples = 2,
        .vocab = 2500},
       kTied},
      {{.hidden = 288, .heads = 9, .groups = 3, .ffn = 768, .seq = 96, .samples = 1, .vocab = 4500},
       {}},
      {{.hidden = 320, .heads = 5, .groups = 5, .ffn = 896, .seq = 112, .samples = 4, .vocab = 400},
       kTied},
      {{.hidden = 384,
        .heads = 6,
        .groups = 6,
        .ffn = 1152,
        .seq = 80,
        .samples = 1,
        .vocab = 6000},
       {}},
      {{.hidden = 448,
        .heads = 7,
        .groups = 7,
        .ffn = 1216,
        .seq = 224,
        .samples = 1,
        .vocab = 900},
       kTied},
      {{.hidden = 576,
        .heads = 9,
        .groups = 3,
        .ffn = 1600,
        .seq = 144,
        .samples = 2,
        .vocab = 9000},
       kTied},
      {{.hidden = 128, .heads = 2, .groups = 1, .ffn = 512, .seq = 640, .samples = 1, .vocab = 300},
       {}}};
}

std::vector<Model> other_models() {
  return {
      {{.hidden = 96, .heads = 3, .groups = 1, .ffn = 256, .seq = 64, .samples = 2, .vocab = 400},
       kBf16},
      {{.hidden = 192,
        .heads = 6,
        .groups = 3,
        .ffn = 576,
        .seq = 160,
        .samples = 2,
        .vocab = 2500},
       with(kBf16, kTied)},
      {{.hidden = 320,
        .heads = 5,
        .groups = 5,
        .ffn = 896,
        .seq = 112,
        .samples = 2,
        .vocab = 6000},
       kBf16},
      {{.hidden = 576,
        .heads = 9,
        .groups = 3,
        .ffn = 1600,
        .seq = 144,
        .samples = 1,
        .vocab = 900},
       with(kBf16, kTied)},
      {{.hidden = 128, .heads = 4, .groups = 2, .ffn = 320, .seq = 64, .samples = 2, .vocab = 500},
       kMuon},
      {{.hidden = 320, .heads = 5, .groups = 5, .ffn = 896, .seq = 96, .samples = 1, .vocab = 500},
       with(kMuon, kBf16)},
      {{.hidden = 192,
        .heads = 6,
        .groups = 6,
        .ffn = 768,
        .seq = 128,
        .samples = 2,
        .vocab = 1500},
       {"model.architecture=gpt2"}},
      {{.hidden = 96, .heads = 3, .groups = 3, .ffn = 256, .seq = 96, .samples = 2, .vocab = 400},
       balanced(4, 192)},
      {{.hidden = 224, .heads = 7, .groups = 7, .ffn = 512, .seq = 144, .samples = 2, .vocab = 900},
       balanced(8, 448)},
      {{.hidden = 320, .heads = 5, .groups = 5, .ffn = 512, .seq = 192, .samples = 1, .vocab = 500},
       balanced(4, 704)},
      {{.hidden = 160, .heads = 5, .groups = 5, .ffn = 512, .seq = 128, .samples = 2, .vocab = 500},
       with(balanced(8, 320), kBf16)}};
}

// Models whose heads, layers and tokens can be divided among the ranks.
std::vector<Sizes> shared_sizes(int64_t world) {
  const int64_t heads = std::max<int64_t>(6, world) / world * world;
  std::vector<Sizes> sizes{{.hidden = 32 * heads,
                            .heads = heads,
                            .groups = heads,
                            .ffn = 96 * heads,
                            .seq = 48 * world,
                            .samples = 2,
                            .vocab = 100 * world},
                           {.hidden = 64 * heads,
                            .heads = heads,
                            .groups = heads,
                            .ffn = 160 * heads,
                            .seq = 64 * world,
                            .samples = 1,
                            .vocab = 1200 * world}};
  // Its messages have megabytes. Of many ranks it would be a large model.
  if (world <= 4)
    sizes.push_back({.hidden = 96 * heads,
                     .heads = heads,
                     .groups = heads,
                     .ffn = 256 * heads,
                     .seq = 48 * world,
                     .samples = 1,
                     .vocab = 1800 * world});
  return sizes;
}

}  // namespace

std::vector<RunPlan> calibration_models(const plan::Machine& machine, int64_t world) {
  std::vector<RunPlan> plans;
  for (const auto& models : {dense_models(), other_models()})
    for (const Model& m : models) plans.push_back(plan_of(machine, 1, 1, m.sizes, m.more));
  if (world < 2) return plans;
  // What a rank computes if it works together with others by dp or pp, by cp, and by tp.
  for (const Sizes& s : shared_sizes(world)) {
    plans.push_back(plan_of(machine, 1, 1, s, {}));
    if (world > kMostForLayers) continue;
    Sizes part = s;
    part.seq /= world;
    plans.push_back(plan_of(machine, 1, 1, part, {}));
    part = s;
    part.heads /= world, part.groups /= world, part.ffn /= world, part.vocab /= world;
    plans.push_back(
        plan_of(machine, 1, 1, part, {fmt::format("model.kv_channels={}", s.hidden / s.heads)}));
  }
  return plans;
}

std::vector<RunPlan> calibration_layouts(const plan::Machine& machine, int64_t world) {
  std::vector<RunPlan> plans;
  if (world < 2) return plans;
  const Settings of_data[] = {
      {"distributed.strategy=ddp"},
      {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"},
      {"distributed.strategy=fsdp2"},
      {"distributed.strategy=fsdp2", "mixed_precision=bf16_mixed"}};
  const std::vector<Sizes> sizes = shared_sizes(world);
  for (const Sizes& s : sizes)
    for (const Settings& more : of_data) plans.push_back(plan_of(machine, world, world, s, more));
  if (world > kMostForLayers) return plans;
  const std::string tp = fmt::format("distributed.tp_size={}", world),
                    cp = fmt::format("distributed.cp_size={}", world),
                    pp = fmt::format("distributed.pp_size={}", world),
                    ep = fmt::format("distributed.ep_size={}", world);
  const Settings shared[] = {{tp},
                             {tp, "distributed.sequence_parallel=true"},
                             {cp},
                             {pp, "distributed.pipeline.pp_schedule=1f1b"},
                             {pp, "distributed.pipeline.pp_schedule=zero_bubble"}};
  for (Sizes s : {sizes[0], sizes[1]}) {
    s.layers = 2 * world;
    for (const Settings& more : shared) plans.push_back(plan_of(machine, world, 1, s, more));
    s.layers = 2;
    // By the router of an untrained model: ranks wait for those with more rows.
    plans.push_back(
        plan_of(machine, world, world, s,
                with(experts(2 * world, s.ffn / 3), {ep, "distributed.strategy=megatron_ddp"})));
  }
  return plans;
}

}  // namespace mtrain::run
