// Runs the tiny training in pipelines, collects its results and launches, and compares them with
// those of a single rank.
#pragma once
#include <algorithm>
#include <map>
#include <optional>

#include <catch2/catch.hpp>

#include "plan/executed_schedule.h"
#include "test/support/comm_testing.h"
#include "test/support/train_testing.h"
#include "train/trainer.h"

namespace pipeline_testing {

using namespace train_testing;

using Values = std::map<std::string, std::vector<float>>;  // by parameter

struct LaunchedParts {
  std::string action;  // the scope in which it was enqueued
  device::StreamId stream;
  std::string name;
  int64_t wire_bytes;
  bool paired;  // it was timed as part of a pair
};

struct PipelineResult {
  std::vector<double> losses, norms;
  double evaluation = 0;
  Values first_grads, weights;                // empty if a rank has only parts of them
  std::vector<std::string> executed, listed;  // actions of this rank
  std::vector<LaunchedParts> launches;        // launches of the first step
  int64_t peak_activations = 0;               // bytes
  std::map<std::string, int64_t> units;       // bytes of the gradients of each unit
  schedule::ActionList actions, simulated;    // what the pipeline runs, and what a simulation plays
};

struct Setup {
  Recipe recipe;
  std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>();
  explicit Setup(const Changes& changes, int ranks = 1)
      : recipe(tiny(with({"model.num_layers=8", "model.hidden_size=32", "model.ffn_hidden_size=48",
                          "train.micro_batch_size=1", "optimizer.lr=3e-3"},
                         changes),
                    ranks)) {}
};

inline Values values(train::Trainer& t, const std::function<Tensor(model::ParamUnit&)>& whole) {
  Values all;
  for (model::ParamUnit* unit : t.params().units()) {
    const Tensor flat = whole(*unit);
    for (const model::Parameter* p : unit->params)
      all[p->name] = flat.flat(p->begin, p->shape).to_host<float>(t.compute());
  }
  return all;
}

// Records the launches of a step, and their actions in the order of their first launches.
class Watch {
 public:
  Watch(Device& device, std::vector<std::string>& actions, std::vector<LaunchedParts>& launches)
      : device_(device) {
    device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
      const std::string action = device.scope().substr(0, device.scope().find(" > "));
      launches.push_back({action, stream.id(), info.name, info.wire_bytes, device.pairs()});
      const bool starts =
          !action.empty() && action[0] >= '0' && action[0] <= '9' && !action.ends_with("SHARD");
      // An action that has begun is interrupted only by the action that it takes turns with, and by
      // that one's send.
      const size_t recent = actions.size() - std::min<size_t>(3, actions.size());
      if (starts &&
          std::find(actions.begin() + ptrdiff_t(recent), actions.end(), action) == actions.end())
        actions.push_back(action);
    });
  }
  ~Watch() { device_.set_launch_check({}); }

 private:
  Device& device_;
};

// Returns the computations and messages of a list, which must be executed in this order. Other
// actions may launch nothing, such as a gather of parameters that are gathered already. Of two
// computations that take turns, the backward comes first.
inline std::vector<std::string> expected_actions(const schedule::ActionList& list) {
  std::vector<std::string> actions;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_compute(list[i].kind) && !is_send(list[i].kind) && !is_receive(list[i].kind)) continue;
    actions.push_back(to_string(list[i]));
    if (i > 0 && list[i - 1].overlaps_next) std::iter_swap(actions.end() - 1, actions.end() - 2);
  }
  return actions;
}

inline PipelineResult train_all(const Setup& s, Device& device, comm::World world, int64_t steps) {
  train::Trainer t = make_trainer(device, s.recipe, s.data, std::move(world));
  // 5 samples leave the last batch partly filled.
  const data::ValidationLoader validation(
      s.data, 5,
      {.micro_batch = 2, .dp_rank = t.data_parallel().rank(), .dp_size = t.data_parallel().size()});
  PipelineResult result;
  for (int64_t i = 0; i < steps; ++i) {
    std::optional<Watch> watch;
    if (i == 0) watch.emplace(device, result.executed, result.launches);
    const train::StepStats stats = t.step();
    watch.reset();
    result.losses.push_back(stats.loss);
    result.norms.push_back(stats.grad_norm);
    const auto& d = s.recipe.distributed;
    if (i == 0 && t.data_parallel().size() == 1 && d.tp_size == 1 && d.cp_size == 1)
      result.first_grads = values(t, [](model::ParamUnit& unit) { return unit.grad; });
    if (i == steps / 2) t.evaluate(validation);  // must not change the training
  }
  result.evaluation = t.evaluate(validation);
  if (t.tensor_parallel().size() == 1)
    result.weights =
        values(t, [&](model::ParamUnit& unit) { return full_master(t.data_parallel(), unit); });
  result.peak_activations = device.allocator().usage(device::MemoryCategory::activations).peak;
  result.actions = t.pipeline().actions();
  result.simulated = plan::executed_schedule(t.plan()).ranks[size_t(t.pipeline().links().rank)];
  const auto flush = expected_actions(result.actions);
  for (int64_t i = 0; i < t.plan().layout.flushes; ++i)
    result.listed.insert(result.listed.end(), flush.begin(), flush.end());
  for (const model::ParamUnit* unit : t.params().units())
    result.units[unit->name] = unit->count * 4;
  if (t.params().params().empty()) result.executed = result.listed;
  return result;
}

inline PipelineResult pipeline_alone(const Changes& changes, int64_t steps) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return train_all(Setup(changes), *device, comm::World::alone(), steps);
}

inline std::vector<PipelineResult> train_pipeline(int ranks, const Changes& changes, int64_t steps,
                                                  const std::string& backend = "thread") {
  const Setup setup(changes, ranks);
  std::vector<PipelineResult> results(static_cast<size_t>(ranks));
  run_ranks(ranks, backend, [&](TestRank& rank) {
    results[size_t(rank.rank())] = train_all(setup, rank.device, rank.world, steps);
  });
  for (const PipelineResult& r : results) CHECK(r.actions == r.simulated);
  return results;
}

inline void check_values(const PipelineResult& one, const std::vector<PipelineResult>& ranks,
                         Values PipelineResult::*which, double bound) {
  for (const auto& [name, want] : one.*which) {
    int found = 0;
    for (const PipelineResult& r : ranks) {
      const auto at = (r.*which).find(name);
      if (at == (r.*which).end()) continue;
      ++found;
      REQUIRE(at->second.size() == want.size());
      double difference = 0, size = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        difference += std::pow(double(at->second[i]) - double(want[i]), 2);
        size += std::pow(double(want[i]), 2);
      }
      INFO(name << " relative L2 " << std::sqrt(difference / size));
      CHECK(difference <= bound * bound * size);
    }
    INFO(name);
    CHECK(found > 0);
  }
}

// The numerics contract: losses to 1e-5 relative in fp32, gradients of step 1 to 1e-5.
inline void check_parity(const PipelineResult& one, const std::vector<PipelineResult>& ranks,
                         double bound = 1e-5) {
  check_close(one.losses, ranks[0].losses, bound);
  check_close(one.norms, ranks[0].norms, 10 * bound);
  CHECK(ranks[0].evaluation == Approx(one.evaluation).epsilon(bound));
  for (const PipelineResult& other : ranks) {
    CHECK((other.losses == ranks[0].losses));
    CHECK((other.norms == ranks[0].norms));
    CHECK(other.evaluation == ranks[0].evaluation);
    CHECK(other.executed == other.listed);
  }
  if (bound > 1e-5) return;
  if (!ranks[0].first_grads.empty()) check_values(one, ranks, &PipelineResult::first_grads, bound);
  if (!ranks[0].weights.empty())
    check_values(one, ranks, &PipelineResult::weights, 1e-2);  // Adam turns small gradients' signs
}

inline Changes pipeline_layout(const std::string& schedule, int pp, int stages = 1) {
  return {fmt::format("distributed.pp_size={}", pp), fmt::format("distributed.vpp_size={}", stages),
          "distributed.pipeline.pp_schedule=" + schedule};
}
inline Changes batch(int64_t samples) {
  return {fmt::format("train.global_batch_size={}", samples)};
}

inline const Changes kTied{"model.share_embeddings_and_output_weights=true"},
    // Tied, with a table that is scaled only on the first stage.
    kCapped{"model.share_embeddings_and_output_weights=true",
            "model.activation=geglu",
            "model.embedding_multiplier=7",
            "model.final_logit_softcapping=0.5",
            "model.residual_multiplier=0.4",
            "model.logits_scaling=3"},
    // Learned positions, tied, dropout.
    kGpt2{"model.architecture=gpt2", "model.num_query_groups=4", "model.hidden_dropout=0.1",
          "model.embedding_dropout=0.1"};

struct Kind {
  const char* name;
  int stages;  // stages per rank
};
inline const std::vector<Kind> kKinds{
    {"gpipe", 1},       {"1f1b", 1},       {"zero_bubble", 1},
    {"zero_bubble", 2}, {"looped_bfs", 2}, {"interleaved_1f1b", 2},
    {"dfs", 2},         {"v_schedule", 2}, {"dualpipev", 2}};

inline const Changes kSingle{"comm_overlap.batch_p2p_comm=false"};
inline const Changes kPairs{"comm_overlap.fine_grained_1f1b=true"},
    kGradientsFirst{"comm_overlap.overlap_p2p_backward_on_comm_stream=true"},
    kTwoLayers{"comm_overlap.overlap_p2p_wgrad_delayed_layer_number=2"},
    kWholeLayers{"comm_overlap.overlap_p2p_with_transformer_layer_wgrad=true"},
    kSplit{"comm_overlap.delay_wgrad_compute=true"};

// Single ranks are trained once per model and batch.
inline const PipelineResult& alone(const Changes& changes, int64_t steps = compared_steps(20)) {
  static std::map<std::pair<Changes, int64_t>, PipelineResult> results;
  const auto at = results.find({changes, steps});
  if (at != results.end()) return at->second;
  return results[{changes, steps}] = pipeline_alone(changes, steps);
}

}  // namespace pipeline_testing
