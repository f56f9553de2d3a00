// Tests steps that are not finite, or whose gradient is a spike: they are skipped on all ranks,
// leave the training as it was, and a resumed run decides alike.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>

#include <catch2/catch.hpp>

#include "ops/elementwise.h"
#include "run/run_checkpoint.h"
#include "test/support/graph_testing.h"
#include "test/support/temporary_folder.h"
#include "train_experts_testing.h"
#include "train_fp8_testing.h"

namespace parity_spikes_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kNaN = 3, kSpike = 19, kAgain = 20, kTrained = 24;
const Changes kSkip{"train.on_spike=skip", "train.spike_factor=20", "train.global_batch_size=12",
                    "train.micro_batch_size=1", "lr_scheduler.warmup_steps=8"};

// Spoils gradients of some weights in three steps: they are infinite, and then twice a spike. A
// step may begin before the host knows the result of the one before, so the calls are counted.
void plant(train::Trainer& t) {
  const int64_t begun = t.steps_done(), micro_batches = t.plan().layout.step_micro_batches();
  t.set_gradient_hook([&t, begun, micro_batches,
                       calls = std::map<std::string, int64_t>()](model::Parameter& p) mutable {
    if (p.name.find("attention.proj.weight") == std::string::npos) return;
    const int64_t call = calls[p.name]++, step = begun + call / micro_batches + 1;
    if (call % micro_batches > 0) return;
    if (step == kNaN)
      ops::fill(t.compute(), p.grad.flat(0, {1}), std::numeric_limits<float>::infinity());
    if (step == kSpike || step == kAgain) ops::scale(t.compute(), p.grad, 1e4f);
  });
}

// The weights and the optimizer's state of this rank, and the 8-bit scales.
std::string bits_of(train::Trainer& t) {
  std::string all;
  t.data_parallel().before_update();  // edge: gathers that write next to owned values -> the copies
  const auto add = [&](const Tensor& x) {
    if (!x) return;
    const auto values = x.to_host_float(t.compute());
    all.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  for (model::ParamUnit* unit : t.params().units()) {
    for (const model::OwnedRange& range : unit->owned)
      add(range.master ? range.master : range.value);
    for (const optim::StateTensor& tensor : t.optimizer().state())
      add(tensor.values.own(t.compute(), *unit));
  }
  return all;
}

struct Steps {
  std::vector<train::StepStats> stats;
  std::vector<double> losses;
  std::vector<int64_t> skipped, unchanged;  // steps
  checkpoint::TrainProgress progress;
  std::vector<float> weights;
  bool operator==(const Steps& o) const {
    return losses == o.losses && skipped == o.skipped && unchanged == o.unchanged &&
           weights == o.weights && progress.spikes == o.progress.spikes;
  }
};

// Makes steps up to `last`; `culprit`: this rank's gradients are spoiled.
void train_to(int64_t last, train::Trainer& t, bool culprit, Steps& out, bool ahead = false) {
  if (culprit) plant(t);
  while (t.steps_done() < last) {
    const int64_t step = t.steps_done() + 1;
    const std::string before = ahead ? "" : bits_of(t);
    const train::StepStats s = t.step(ahead && step < last);
    out.stats.push_back(s);
    out.losses.push_back(s.loss);
    if (s.skipped || s.overflowed) out.skipped.push_back(step);
    if (!ahead && bits_of(t) == before) out.unchanged.push_back(step);
  }
  out.progress = t.progress();
  out.weights = full_weights(t);
}

Steps alone(const Changes& changes, bool ahead = false) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  train::Trainer t =
      make_trainer(*device, tiny(with(kSkip, changes)), std::make_shared<CountingData>());
  Steps out;
  train_to(kTrained, t, true, out, ahead);
  return out;
}

const std::vector<int64_t> kSkipped{kNaN, kSpike, kAgain};

struct Layout {
  const char* name;
  int ranks;
  Changes changes, model = {};  // `model`: settings of the single rank, too
};
const Changes kMuon{"optimizer.name=muon"},
    kExperts{"model.moe.num_experts=4", "model.moe.router_topk=2"};
const std::vector<Layout> kLayouts{
    {"ddp", 2, {"distributed.strategy=ddp"}},
    {"megatron_ddp", 3, kMegatron},
    {"megatron_fsdp", 2, {"distributed.strategy=megatron_fsdp"}},
    {"fsdp2", 4, kFsdp2},
    {"tp, sequence", 2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"cp", 2, {"distributed.cp_size=2"}},
    {"pp", 2, {"distributed.pp_size=2", "distributed.pipeline={}"}},
    {"tp, pp, dp",
     8,
     {"distributed.tp_size=2", "distributed.pp_size=2", "distributed.pipeline={}",
      "distributed.strategy=megatron_ddp"}},
    {"muon, fsdp2", 2, kFsdp2, kMuon},
    {"muon, tp", 2, {"distributed.tp_size=2"}, kMuon},
    {"ep", 2, {"distributed.ep_size=2", "distributed.strategy=megatron_ddp"}, kExperts}};

}  // namespace

TEST_CASE("every layout skips the steps of a single rank, and has its losses") {
  std::map<Changes, Steps> singles;
  for (const Layout& l : kLayouts) {
    CAPTURE(l.name);
    if (!singles.contains(l.model)) singles[l.model] = alone(l.model);
    const Steps& single = singles[l.model];
    CHECK(single.skipped == kSkipped);
    CHECK(single.unchanged == kSkipped);
    const Recipe r = tiny(with(with(kSkip, l.model), l.changes), l.ranks);
    std::vector<Steps> ranks(size_t(l.ranks));
    run_ranks(l.ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      // A rank of the last stage does not have the parameter of the first.
      train_to(kTrained, t, rank.rank() == l.ranks - 1, ranks[size_t(rank.rank())]);
    });
    check_close(single.losses, ranks[0].losses, 1e-5);
    for (const Steps& rank : ranks) {
      CHECK(rank.skipped == kSkipped);
      CHECK(rank.unchanged == kSkipped);
      CHECK(rank.losses == ranks[0].losses);
      CHECK(rank.progress.spikes == ranks[0].progress.spikes);
      CHECK(rank.progress.updates == kTrained - 3);
    }
  }
}

TEST_CASE("a skipped step keeps the learning rate, and its norm does not count") {
  const Steps steps = alone({});
  const auto& s = steps.stats;
  CHECK(s[kNaN].lr == s[kNaN - 1].lr);  // the update that was skipped
  CHECK(s[kNaN].lr > s[kNaN - 2].lr);
  CHECK(s[kSpike - 2].norm_median > 0);
  CHECK(s[kSpike].norm_median == s[kSpike - 1].norm_median);
  CHECK(s[kSpike - 1].grad_norm > 20 * s[kSpike - 1].norm_median);
  CHECK(s[10].norm_median == 0);  // too few norms
}

TEST_CASE("steps that have begun before the result of a skipped one have the same results") {
  const Steps off = alone({}), on = alone({}, true);
  CHECK(on.skipped == kSkipped);
  CHECK(on.losses == off.losses);
  CHECK(on.weights == off.weights);
  CHECK(on.progress.spikes == off.progress.spikes);
}

TEST_CASE("a run that resumes between skipped steps decides alike") {
  for (const Changes& model : {Changes{}, kMuon})
    for (const int64_t saved : {kSpike - 1, kSpike}) {
      const Recipe r = tiny(with(kSkip, model));
      const auto device = Device::cpu(1, {.stream_sanitizer = true});
      const TemporaryFolder folder;
      Steps straight, resumed;
      std::string checkpoint;
      {
        train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
        train_to(saved, t, true, straight);
        checkpoint = run::save_run(t, folder.path).string();
        resumed = straight;
        train_to(kTrained, t, true, straight);
      }
      train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
      train_to(2, t, true, resumed);  // these steps do not matter
      resumed.stats.clear();
      resumed.losses.resize(size_t(saved));
      std::erase_if(resumed.unchanged, [](int64_t step) { return step < kNaN; });
      run::resume_run(t, checkpoint);
      train_to(kTrained, t, true, resumed);
      CHECK(resumed == straight);
      CHECK(straight.skipped == kSkipped);
    }
}

TEST_CASE("skipped steps leave the state of fp16 and fp8 as it was") {
  SECTION("fp16: only an overflow lowers the scale") {
    const Steps steps = alone({"mixed_precision.name=fp16_mixed"});
    CHECK(steps.skipped == kSkipped);
    CHECK(steps.unchanged == kSkipped);
    CHECK(steps.stats[kNaN - 1].overflowed);
    CHECK(steps.stats[kSpike - 1].skipped);
    CHECK(steps.stats[kNaN].loss_scale == 32768);
    CHECK(steps.stats[kTrained - 1].loss_scale == 32768);
  }
  SECTION("fp8: histories forget the step") {
    for (const Changes& more : {Changes{}, Changes{"mixed_precision.fp8_param_gather=true",
                                                   "distributed.strategy=megatron_fsdp"}}) {
      Run run(with(with(kDelayed, kSkip), more));
      Steps out;
      train_to(kSpike - 1, run.trainer, true, out);
      const std::string before = run.scales();
      train_to(kSpike, run.trainer, true, out);
      CHECK(out.skipped == std::vector<int64_t>{kNaN, kSpike});
      // The scale is the first number of a line; the history's order moves on.
      const auto scales = [](const std::string& text) {
        std::vector<std::string> all;
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) {
          std::istringstream words(line);
          std::string key, scale;
          words >> key >> scale;
          all.push_back(key + " " + scale);
        }
        return all;
      };
      CHECK(scales(run.scales()) == scales(before));
      train_to(kTrained, run.trainer, true, out);
      CHECK(out.skipped == kSkipped);
    }
  }
}

TEST_CASE("an update that is a graph is skipped by the limit in memory") {
  const auto run = [](bool graphs) {
    const auto device =
        Device::on(std::make_unique<RecordingBackend>(""), {.stream_sanitizer = true});
    Recipe r = tiny(with(kSkip, {"train.global_batch_size=4"}));
    r.train.device = recipe::DeviceChoice::cuda;
    r.train.enable_cuda_graph = graphs;
    r.train.cuda_graph_scope = recipe::GraphScope::full_iteration;
    train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
    Steps out;
    // A graph would replay what a hook has launched, so a batch is the spike: its weight is scaled.
    for (int64_t step = 1; step <= 20; ++step) {
      model::Parameter* p = t.params().find("output.weight");
      if (!p) p = t.params().find("head.weight");
      REQUIRE(p);
      auto values = p->master.to_host<float>(t.compute());
      values.resize(size_t(p->full_shape().count()));  // without the padding
      if (step == 18) {
        auto scaled = values;
        for (float& v : scaled) v *= 3000;
        t.change_weights([&] { t.params().set_master(t.compute(), *p, scaled); });
      }
      const train::StepStats s = t.step(false);
      out.losses.push_back(s.loss);
      if (s.skipped) out.skipped.push_back(step);
      if (step == 18) t.change_weights([&] { t.params().set_master(t.compute(), *p, values); });
    }
    out.weights = full_weights(t);
    out.progress = t.progress();
    if (graphs) CHECK(t.graphs()->update_replays() > 10);
    return out;
  };
  const Steps single = run(false), graphs = run(true);
  CHECK(single.skipped == std::vector<int64_t>{18});
  CHECK(single == graphs);
}

TEST_CASE("five skipped steps in a row, or one without train.on_spike, end the run") {
  const auto message = [](const Changes& changes, bool bad) -> std::string {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t =
        make_trainer(*device, tiny(with(kSkip, changes)), std::make_shared<CountingData>());
    try {
      while (t.steps_done() < 30) {
        if (t.steps_done() == 20)
          t.set_gradient_hook([&](model::Parameter& p) {
            // In each of 12 micro-batches.
            ops::scale(t.compute(), p.grad, bad ? std::numeric_limits<float>::infinity() : 3.0f);
          });
        t.step(t.steps_done() < 25);
      }
    } catch (const RunError& e) {
      return e.what();
    }
    return "";
  };
  CHECK_THAT(message({}, false), Contains("step 25") && Contains("5th step in a row") &&
                                     Contains("times the median") && Contains("hint"));
  CHECK_THAT(message({}, true), Contains("step 25") && Contains("finite"));
  CHECK_THAT(message({"train.on_spike=stop"}, false),
             Contains("step 21") && Contains("train.spike_factor is 20"));
  CHECK_THAT(message({"train.on_spike=stop"}, true), Contains("step 21") && Contains("finite"));
  CHECK(message({"train.on_spike=stop", "train.spike_factor=none"}, false).empty());
  CHECK_THAT(message({"debug.check_nan=false"}, true),
             Contains("step 25") && Contains("not finite"));
}

}  // namespace parity_spikes_test
