// Compares models with experts under layouts, schedules and recomputation with a single rank. Runs
// under the stream sanitizer.
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>

#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "train_ranks.h"

namespace parity_experts_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

namespace {

// A dense layer, then layers of 16 experts: with 24 tokens in a micro-batch, some experts have no
// row.
const Changes kExperts{"model.num_layers=4",
                       "model.moe.num_experts=16",
                       "model.moe.router_topk=2",
                       "model.moe.ffn_hidden_size=40",
                       "model.moe.first_dense_layers=1",
                       "model.moe.load_balancing_type=aux_loss",
                       "model.moe.aux_loss_coeff=0.05",
                       "model.moe.z_loss_coeff=0.001",
                       "train.global_batch_size=8",
                       "train.micro_batch_size=1"};
// Experts of every layer whose weights do not sum to 1, and a shared expert under a gate.
const Changes kShared{"model.num_layers=4",
                      "model.moe.num_experts=6",
                      "model.moe.router_topk=3",
                      "model.moe.ffn_hidden_size=40",
                      "model.moe.router_pre_softmax=true",
                      "model.moe.norm_topk_prob=false",
                      "model.moe.shared_expert_ffn_hidden_size=56",
                      "model.moe.shared_expert_gate=true",
                      "model.moe.load_balancing_type=seq_aux_loss",
                      "model.moe.aux_loss_coeff=0.05",
                      "train.global_batch_size=8",
                      "train.micro_batch_size=1"};

// DeepSeek-V3's router: sigmoids, groups, and biases that balance the experts; and a loss of the
// loads of the batch before.
const Changes kBiased{"model.num_layers=4",
                      "model.moe.num_experts=16",
                      "model.moe.router_topk=4",
                      "model.moe.ffn_hidden_size=40",
                      "model.moe.router_score=sigmoid",
                      "model.moe.router_topk_scaling_factor=2.5",
                      "model.moe.num_groups=4",
                      "model.moe.group_topk=2",
                      "model.moe.first_dense_layers=1",
                      "model.moe.router_bias_update_rate=0.02",
                      "model.moe.load_balancing_type=[global_aux_loss,seq_aux_loss]",
                      "model.moe.aux_loss_coeff=[0.05,0.01]",
                      "train.global_batch_size=8",
                      "train.micro_batch_size=1"};
// Experts that take at most 1.1 of an even share of a micro-batch.
const Changes kCapacity = with(kExperts, {"model.moe.expert_capacity_factor=1.1", "train.seed=3"});

// The number of steps before a choice, or a place in an expert's capacity, nearly ties.
const std::vector<std::pair<Changes, int>> kTrainings{
    {kExperts, 10}, {kShared, 10}, {kBiased, 10}, {kCapacity, 7}};

const Changes kMegatron{"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"},
    kFsdp2{"distributed.strategy=fsdp2"};

const Changes kExpertsAgain{"recompute.granularity=selective",
                            "recompute.modules=[moe,shared_experts]"};

Changes pipelined(const char* schedule, int stages) {
  return {"distributed.pp_size=2", fmt::format("distributed.vpp_size={}", stages),
          fmt::format("distributed.pipeline.pp_schedule={}", schedule)};
}

// The numerics contract: losses to 1e-5 relative in fp32, the first step's gradients, too.
void expect_as_alone(const Result& one, const std::vector<Result>& ranks, bool full_model) {
  for (const Result& r : ranks) {
    check_close(one.losses, r.losses, 1e-5);
    check_close(one.norms, r.norms, 1e-4);
    CHECK(r.evaluation == Approx(one.evaluation).epsilon(1e-5));
    if (full_model) check_gradients(one, r, 1e-5);
  }
}

}  // namespace

TEST_CASE("models with experts train as a single rank does under every strategy") {
  const std::vector<Changes> strategies{
      {"distributed.strategy=ddp", "ddp.bucket_size=9000"},
      kMegatron,
      {"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"},
      with(kMegatron, {"ddp.average_in_collective=true"}),
      {"distributed.strategy=megatron_fsdp", "ddp.bucket_size=3000"},
      kFsdp2,
      {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false",
       "distributed.reshard_after_forward=false"},
      with(kFsdp2, {"recompute.granularity=full", "recompute.num_layers=2"}),
      with(kFsdp2, kExpertsAgain)};
  for (const auto& [model, steps] : kTrainings) {
    const Result one = train_alone(model, steps);
    CHECK(one.losses.back() < 0.97 * one.losses.front());
    for (const Changes& strategy : strategies) {
      CAPTURE(model, strategy);
      expect_as_alone(one, train_ranks(2, with(model, strategy), steps), true);
    }
    expect_as_alone(
        one, train_ranks(4, with(model, with(kFsdp2, {"distributed.dp_replicate_size=2"})), steps),
        true);
  }
}

TEST_CASE("models with experts train as a single rank does under every kind of schedule") {
  struct Case {
    const char* schedule;
    int stages;
    int dp;
    Changes strategy;
  };
  const std::vector<Case> cases{
      {"1f1b", 1, 1, kMegatron},
      {"1f1b", 1, 2, kFsdp2},
      {"interleaved_1f1b", 2, 1, kMegatron},
      {"interleaved_1f1b", 2, 2, with(kMegatron, {"comm_overlap.fine_grained_1f1b=true"})},
      {"zero_bubble", 1, 1, kFsdp2},
      {"zero_bubble", 1, 1, with(kMegatron, kExpertsAgain)},
      {"zero_bubble", 2, 1, kMegatron},
      {"v_schedule", 2, 1, kMegatron},
      {"dualpipev", 2, 1, kMegatron}};
  for (const Changes& model : {kExperts, kShared, kBiased}) {
    const Result one = train_alone(model, 6);
    for (const Case& c : cases) {
      CAPTURE(model, c.schedule, c.stages, c.dp, c.strategy);
      const auto ranks =
          train_ranks(2 * c.dp, with(model, with(pipelined(c.schedule, c.stages), c.strategy)), 6);
      expect_as_alone(one, ranks, false);
    }
  }
}

// The choices of each layer: an array for each micro-batch of the global batch, step after step.
using Choices = std::map<std::string, std::vector<std::vector<int32_t>>>;

// Trains over `ranks`, with `dp` data-parallel ranks among them.
Choices choices(int ranks, int64_t dp, const Changes& changes, int64_t steps) {
  const Recipe r = tiny(changes, ranks);
  Choices all;
  std::mutex mutex;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    const int64_t micro_batches = r.train.global_batch_size / r.train.micro_batch_size;
    for (int64_t step = 0; step < steps; ++step) {
      std::map<std::string, int64_t> seen;
      rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
        if (std::string_view(info.name) != "route_tokens") return;
        const std::string scope = rank.device.scope(), layer = scope.substr(scope.rfind(' ') + 1);
        const int64_t number = seen[layer]++ * dp + t.data_parallel().rank();
        auto found = Tensor::of(info.writes[0]).to_host<int32_t>(stream);
        const std::lock_guard lock(mutex);
        auto& of_layer = all[layer];
        of_layer.resize(size_t(steps * micro_batches));
        of_layer.at(size_t(step * micro_batches + number)) = std::move(found);
      });
      t.step();
      rank.device.set_launch_check({});
    }
  });
  return all;
}

// Returns where the choices differ first; empty if they do not.
std::string first_difference(const Choices& one, const Choices& other) {
  if (one.size() != other.size()) return fmt::format("{} and {} layers", one.size(), other.size());
  for (const auto& [layer, batches] : one)
    for (size_t i = 0; i < batches.size(); ++i)
      for (size_t k = 0; k < batches[i].size(); ++k)
        if (!other.contains(layer) || other.at(layer).at(i).at(k) != batches[i][k])
          return fmt::format("{}: micro-batch {} chooses {} for its choice {}", layer, i,
                             batches[i][k], k);
  return "";
}

// Layouts round differently from a single rank, by some 1e-6. No score of these trainings is that
// close to a tie, so every choice must be the same.
TEST_CASE("every layout chooses a single rank's experts for every token") {
  struct Case {
    int ranks;
    int64_t dp;
    Changes changes;
  };
  const std::vector<Case> cases{{2, 2, kFsdp2},
                                {2, 2, kMegatron},
                                {4, 4, with(kFsdp2, {"distributed.dp_replicate_size=2"})},
                                {2, 1, with(pipelined("zero_bubble", 1), kMegatron)},
                                {4, 2, with(pipelined("interleaved_1f1b", 2), kMegatron)},
                                {2, 1, with(pipelined("dualpipev", 2), kMegatron)}};
  for (const auto& [model, steps] : kTrainings) {
    const Choices one = choices(1, 1, model, steps);
    CHECK(one.size() >= 3);
    for (const Case& c : cases) {
      CAPTURE(model, c.changes);
      const Choices other = choices(c.ranks, c.dp, with(model, c.changes), steps);
      CHECK(first_difference(one, other) == "");
    }
  }
}

TEST_CASE("recomputation chooses the same experts, and changes no bit") {
  for (const Changes& model : {kExperts, kShared, kBiased, kCapacity})
    for (const char* precision : {"fp32", "bf16_mixed"}) {
      const Changes base = with(model, {fmt::format("mixed_precision.name={}", precision)});
      const Result kept = train_alone(base, 4);
      const std::vector<Changes> policies{
          {"recompute.granularity=full"},
          {"recompute.granularity=full", "recompute.num_layers=2"},
          {"recompute.granularity=selective"},
          {"recompute.granularity=selective", "recompute.modules=[core_attn,layernorm]"},
          {"recompute.granularity=selective", "recompute.modules=[moe]"},
          {"recompute.granularity=selective", "recompute.modules=[moe_act,core_attn]",
           "recompute.cheap=false"},
          {"recompute.granularity=selective", "recompute.modules=[moe,shared_experts,layernorm]"},
          {"recompute.granularity=selective", "recompute.modules=[shared_experts]",
           "recompute.cheap=false"}};
      for (const Changes& policy : policies) {
        CAPTURE(base, policy);
        const Result again = train_alone(with(base, policy), 4);
        CHECK(again.losses == kept.losses);
        CHECK((again.weights == kept.weights));
      }
    }
}

TEST_CASE("losses of tokens and samples do not depend on the micro-batch size") {
  const Changes model =
      with(kExperts, {"model.moe.load_balancing_type=seq_aux_loss", "model.moe.z_loss_coeff=0.1"});
  const Result one = train_alone(with(model, {"train.micro_batch_size=8"}), 5);
  for (const char* size : {"1", "2", "4"}) {
    CAPTURE(size);
    const Result cut =
        train_alone(with(model, {fmt::format("train.micro_batch_size={}", size)}), 5);
    check_close(one.losses, cut.losses, 1e-5);
    check_gradients(one, cut, 1e-5);
  }
}

TEST_CASE("gradients that are scaled by micro-batches have the routers' losses scaled, too") {
  const Result one = train_alone(kExperts, 1);
  const Changes layout = with(with(kExperts, with(pipelined("1f1b", 1), kMegatron)),
                              {"distributed.pipeline.scale_grads_in_schedule=true"});
  for (const Result& r : train_ranks(2, layout, 1))
    CHECK(8 * r.norms[0] == Approx(one.norms[0]).epsilon(1e-4));
}

struct Saved {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> state;  // the routers' state after the last step
};

// Trains `steps` steps, from the checkpoint `from` if that is not empty, and saves into the folder
// `to` if that is not empty.
Saved run_and_save(int ranks, const Changes& changes, int steps, const fs::path& from,
                   const fs::path& to) {
  const Recipe r = tiny(changes, ranks);
  Saved result;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (!from.empty()) run::resume_run(t, from);
    Saved own;
    for (int i = 0; i < steps; ++i) own.losses.push_back(t.step().loss);
    if (!to.empty()) run::save_run(t, to);
    for (const auto& s : t.checkpoint_parts().replicated)
      own.state[s.name] = s.value.to_host<float>(t.compute());
    if (rank.rank() == 0) result = own;
  });
  return result;
}

const std::vector<std::pair<int, Changes>>& saving_layouts() {
  static const std::vector<std::pair<int, Changes>> list{
      {1, {}}, {2, kFsdp2}, {2, kMegatron}, {2, with(pipelined("1f1b", 1), kMegatron)}};
  return list;
}

TEST_CASE("a checkpoint of experts resumes under any layout, bit by bit under its own") {
  for (const Changes& base :
       {with(kExperts, {"model.moe.shared_expert_ffn_hidden_size=32"}), kBiased}) {
    const TemporaryFolder root;
    const auto& layouts = saving_layouts();
    for (size_t i = 0; i < layouts.size(); ++i) {
      const auto& [ranks, own] = layouts[i];
      const auto& [other_ranks, other] = layouts[(i + 1) % layouts.size()];
      CAPTURE(base, own, other);
      const fs::path folder = root.path / std::to_string(i);
      const Saved before = run_and_save(ranks, with(base, own), 3, {}, folder);
      const auto saved = storage::find_latest(folder);
      REQUIRE(saved);
      const auto straight = run_and_save(ranks, with(base, own), 6, {}, {}).losses;
      const std::vector<double> tail(straight.begin() + 3, straight.end());
      CHECK((run_and_save(ranks, with(base, own), 3, saved->path, {}).losses == tail));
      check_close(tail, run_and_save(other_ranks, with(base, other), 3, saved->path, {}).losses,
                  1e-5);
      CHECK(
          (run_and_save(other_ranks, with(base, other), 0, saved->path, {}).state == before.state));
    }
  }
}

TEST_CASE("biases move by the rate towards an even load, on every rank alike") {
  constexpr int kSteps = 40;
  struct Step {
    double variation = 0;
    std::map<std::string, std::vector<float>> bias, load;
  };
  for (const auto& [ranks, layout] : saving_layouts()) {
    CAPTURE(layout);
    const Recipe r = tiny(with(with(kBiased, layout), {"train.steps=40"}), ranks);
    std::vector<std::vector<Step>> all(static_cast<size_t>(ranks));
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      for (int i = 0; i < kSteps; ++i) {
        Step step{.variation = t.step().experts.value().load_variation};
        for (const auto& s : t.checkpoint_parts().replicated)
          (s.of_model ? step.bias : step.load)[s.name] = s.value.to_host<float>(t.compute());
        all[size_t(rank.rank())].push_back(step);
      }
    });
    for (const std::vector<Step>& steps : all) {
      CHECK((steps.back().bias == all[0].back().bias));
      CHECK((steps.back().load == all[0].back().load));
      CHECK(steps.back().bias.size() == 3);
      for (size_t i = 1; i < steps.size(); ++i)
        for (const auto& [name, now] : steps[i].bias) {
          int moved = 0;
          for (size_t e = 0; e < now.size(); ++e) {
            const double by = std::abs(double(now[e]) - steps[i - 1].bias.at(name)[e]);
            if (by == 0) continue;
            ++moved;
            CHECK(by == Approx(0.02).epsilon(1e-4));
          }
          CHECK(moved > 0);
        }
      for (const auto& [name, load] : steps.back().load)
        CHECK(std::accumulate(load.begin(), load.end(), 0.0) == Approx(1).epsilon(1e-5));
    }
  }
}

TEST_CASE("biases alone balance the experts") {
  // Returns the mean of the last steps' variation of loads.
  const auto variation = [](const char* rate) {
    const Recipe r = tiny(with(
        kBiased, {"model.moe.load_balancing_type=none", "model.moe.aux_loss_coeff=0",
                  "train.steps=60", fmt::format("model.moe.router_bias_update_rate={}", rate)}));
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
    double sum = 0;
    for (int i = 0; i < 60; ++i) {
      const double now = t.step().experts.value().load_variation;
      if (i >= 50) sum += now;
    }
    return sum / 10;
  };
  CHECK(variation("0.005") < 0.75 * variation("0"));
}

TEST_CASE("biases and loads follow from the batch alone: micro-batches and evaluation move none") {
  const auto state = [](const Changes& changes, bool evaluates) {
    const Recipe r = tiny(with(kBiased, changes));
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    const auto data = std::make_shared<CountingData>();
    train::Trainer t = make_trainer(*device, r, data);
    const data::ValidationLoader validation(data, 13, {.micro_batch = 2});
    for (int i = 0; i < 2; ++i) {
      if (evaluates) t.evaluate(validation);
      t.step();
    }
    std::vector<std::vector<float>> all;
    for (const auto& s : t.checkpoint_parts().replicated)
      all.push_back(s.value.to_host<float>(t.compute()));
    return all;
  };
  const auto once = state({}, false);
  CHECK(once.size() == 6);
  CHECK((state({}, true) == once));
  CHECK((state({"recompute.granularity=full"}, false) == once));
  // In the first two steps no loads change a choice, so the counts are equal.
  CHECK((state({"train.micro_batch_size=4", "model.moe.aux_loss_coeff=[0,0.01]",
                "model.moe.load_balancing_type=[none,seq_aux_loss]"},
               false) == state({"train.micro_batch_size=1", "model.moe.aux_loss_coeff=[0,0.01]",
                                "model.moe.load_balancing_type=[none,seq_aux_loss]"},
                               false)));
}

TEST_CASE("after the first step the global loss does not depend on the micro-batch size") {
  // The first step has no batch before it, so its gradients differ, and the weights of later steps
  // would differ, too. With a learning rate of nearly 0 later steps have the same weights.
  const auto gradients = [](const char* micro_batch) {
    const Recipe r = tiny(with(
        kExperts, {"model.moe.load_balancing_type=global_aux_loss", "model.moe.aux_loss_coeff=2",
                   "optimizer.lr=1e-12", "optimizer.betas=[0.0,0.95]", "optimizer.weight_decay=0",
                   fmt::format("train.micro_batch_size={}", micro_batch)}));
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
    Result first{.gradients = {}}, second;
    t.step();
    first.gradients = first_gradients(t);
    const double loss = t.step().experts.value().balance_loss;
    second.gradients = first_gradients(t);
    second.losses = {loss};
    return std::pair(first, second);
  };
  const auto [first, second] = gradients("8");
  for (const char* size : {"1", "4"}) {
    CAPTURE(size);
    const auto [other_first, other] = gradients(size);
    check_close(second.losses, other.losses, 1e-5);
    check_gradients(second, other, 2e-5);
    const auto &a = first.gradients.at("layers.1.mlp.router.weight"),
               &b = other_first.gradients.at("layers.1.mlp.router.weight");
    double difference = 0, length = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference += std::pow(double(a[i]) - b[i], 2);
      length += std::pow(double(a[i]), 2);
    }
    CHECK(difference > 1e-6 * length);
  }
}

TEST_CASE("experts drop choices beyond their capacity in training, and none in evaluation") {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  const auto data = std::make_shared<CountingData>();
  const data::ValidationLoader validation(data, 13, {.micro_batch = 1});
  const auto trainer = [&](const Changes& changes) {
    return make_trainer(*device, tiny(with(kExperts, changes)), data);
  };
  train::Trainer all = trainer({});
  const double evaluation = all.evaluate(validation);
  const double loss = all.step().loss;
  for (const char* policy : {"probs", "position"}) {
    CAPTURE(policy);
    const std::string drops = fmt::format("model.moe.token_drop_policy={}", policy);
    train::Trainer tight = trainer({"model.moe.expert_capacity_factor=0.5", drops}),
                   wide = trainer({"model.moe.expert_capacity_factor=8", drops});
    CHECK(tight.evaluate(validation) == evaluation);
    const train::StepStats cut = tight.step(), whole = wide.step();
    // An even share is 3 of a sample's 48 choices, and each of 16 experts has 2 places.
    CHECK(cut.experts->dropped >= 1.0 / 3);
    CHECK(cut.experts->dropped < 1);
    CHECK(cut.loss != loss);
    // All choices count in the loads and losses, dropped or not.
    CHECK(whole.experts->dropped == 0);
    CHECK(whole.loss == loss);
  }
}

// Packs that end with `padding` tokens of padding, whose ids depend on `fill`.
class PaddedData : public CountingData {
 public:
  PaddedData(int64_t padding, int32_t fill) : padding_(padding), fill_(fill) {}
  bool packed() const override { return true; }
  void sample(int64_t index, data::Sample& out) const override {
    CountingData::sample(index, out);
    const int64_t real = seq_length() - padding_;
    out.documents = {real, padding_};
    out.padding = padding_;
    for (int64_t s = real; s < seq_length(); ++s) {
      out.input[size_t(s)] = fill_;
      out.label[size_t(s)] = -1;
      out.position[size_t(s)] = int32_t(s - real);
    }
  }

 private:
  int64_t padding_;
  int32_t fill_;
};

TEST_CASE("tokens of padding are not routed, and count in no loss or load") {
  const auto train = [](int32_t fill, const Changes& more) {
    const Recipe r = tiny(with(with(kBiased, {"packed_sequence.packed_sequence_size=24"}), more));
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t = make_trainer(*device, r, std::make_shared<PaddedData>(9, fill));
    std::vector<double> all;
    for (int i = 0; i < 3; ++i) {
      const train::StepStats s = t.step();
      all.insert(all.end(), {s.loss, s.experts->balance_loss, s.experts->load_max, s.grad_norm});
    }
    for (const auto& s : t.checkpoint_parts().replicated)
      for (const float x : s.value.to_host<float>(t.compute())) all.push_back(x);
    return all;
  };
  const auto zeros = train(0, {});
  CHECK((train(17, {}) == zeros));
  CHECK((train(17, {"recompute.granularity=selective", "recompute.modules=[moe]"}) == zeros));
}

TEST_CASE("the log has the routers' losses and loads, alike on all ranks and under all layouts") {
  const train::ExpertStats one = first_expert_stats(1, kExperts)[0];
  CHECK(one.balance_loss > 3 * 0.05);  // three layers; an even load would be 1
  CHECK(one.z_loss > 0);
  CHECK(one.load_max > 1);
  CHECK(one.load_variation > 0);
  for (const Changes& layout : {kFsdp2, with(pipelined("1f1b", 1), kMegatron),
                                with(kFsdp2, {"recompute.granularity=full"})})
    for (const train::ExpertStats& other : first_expert_stats(2, with(kExperts, layout))) {
      CAPTURE(layout);
      CHECK(other.balance_loss == Approx(one.balance_loss).epsilon(1e-6));
      CHECK(other.z_loss == Approx(one.z_loss).epsilon(1e-6));
      CHECK(other.load_max == Approx(one.load_max));
      CHECK(other.load_variation == Approx(one.load_variation));
      CHECK(other.dead == one.dead);
    }
  const Recipe dense = tiny();
  const auto device = Device::cpu(1);
  CHECK_FALSE(make_trainer(*device, dense, std::make_shared<CountingData>()).step().experts);
}

}  // namespace parity_experts_test
