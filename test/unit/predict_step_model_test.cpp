// Predicts steps of small models on clusters with round figures.
#include <ctime>
#include <map>

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "predict/contention.h"
#include "predict/group_links.h"
#include "predict/recorded_step.h"
#include "predict/sheet_costs.h"
#include "predict/stage_sequences.h"
#include "predict/step_model.h"
#include "test/support/predict_cases.h"

namespace predict_step_model_test {

using namespace mtrain;
using namespace mtrain::predict;
using predict_cases::cluster;

namespace {

using Changes = std::vector<std::string>;

RunPlan plan_of(int ranks, const Changes& more) {
  Changes all{
      "model.num_layers=4",         "model.hidden_size=64",     "model.num_attention_heads=4",
      "model.num_query_groups=2",   "model.ffn_hidden_size=96", "dataset.seq_length=32",
      "dataset.train=unused",       "train.run_dir=unused",     "train.steps=20",
      "train.global_batch_size=24", "train.micro_batch_size=1", "mixed_precision=fp32",
      "model.architecture=llama"};
  all.insert(all.end(), more.begin(), more.end());
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "tiny", all,
                                          diagnostics, ranks);
  diagnostics.throw_if_errors();
  return plan::make_plan(r, ranks, 256);
}

Prediction predicted(const RunPlan& plan, const plan::Cluster& c = cluster()) {
  return StepModel(plan, c).price(SheetCosts(c, {}));
}

double sum(const std::vector<NamedTime>& parts) {
  double all = 0;
  for (const NamedTime& part : parts) all += part.seconds;
  return all;
}

const std::pair<int, Changes> kLayouts[] = {
    {1, {}},
    {1, {"recompute=full"}},
    {2, {"distributed.strategy=ddp"}},
    {2, {"distributed.strategy=fsdp2"}},
    {2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {2, {"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}},
    {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
    {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=gpipe"}},
    {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zero_bubble"}},
    {2,
     {"distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline.pp_schedule=interleaved_1f1b"}},
    {4,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b",
      "distributed.strategy=fsdp2"}},
    {8,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b", "distributed.tp_size=2",
      "distributed.strategy=megatron_ddp"}},
    {2,
     {"model.moe.num_experts=4", "model.moe.ffn_hidden_size=48", "model.moe.router_topk=2",
      "debug.route=balanced", "distributed.ep_size=2", "distributed.strategy=megatron_ddp"}}};

// Communication makes computations much slower.
class Disturbed : public SheetCosts {
 public:
  explicit Disturbed(const plan::Cluster& c) : SheetCosts(c, {}) {}
  double slowdown(device::StreamKind) const override { return 0.5; }
};

// Messages take twice as long beside computations of their sender, and may slow down computations
// of both ends.
class Contended : public SheetCosts {
 public:
  explicit Contended(const plan::Cluster& c, double slowdown = 0)
      : SheetCosts(c, {}), slowdown_(slowdown) {}
  LaunchCost cost(const LaunchWork& launch, const plan::GroupLink* link) const override {
    LaunchCost cost = SheetCosts::cost(launch, link);
    if (link) cost.work_s = cost.seconds;
    return cost;
  }
  double slowdown(device::StreamKind) const override { return slowdown_; }
  double beside_compute(device::StreamKind kind) const override {
    return kind == device::StreamKind::pp_send ? 1 : 0;
  }

 private:
  double slowdown_;
};

// Plays all ranks of a pipeline at once, launch by launch; a receive ends with its send. Messages
// of a rank share its link within the domain, or that to other domains.
class JointReplay {
 public:
  JointReplay(const RunPlan& plan, const plan::Cluster& c, const LaunchCosts& costs) : cluster_(c) {
    GroupLinks links(plan, c);
    LaunchList list;
    for (int r = 0; r < int(plan.layout.pp); ++r) {
      const RecordedStep step = record_step(plan, r);
      Rank& rank = ranks_.emplace_back();
      for (const device::LaunchRecord& item : step.records.items()) {
        uint32_t number = 0;
        if (!item.waits_for)
          number = list.number_of(
              item, item.group < 0 ? nullptr
                                   : &links.of(step.records.groups()[size_t(item.group)].ranks));
        rank.items.push_back({item, number});
      }
    }
    prices_ = list.price(costs);
  }

  // Messages slow computations down, which delays messages, and computations make messages longer;
  // rounds settle both.
  double seconds() {
    double end = play();
    for (int round = 1; round < 100; ++round) {
      const double before = std::exchange(end, play());
      if (round >= 5 && std::abs(end / before - 1) < 1e-9) return end;
    }
    FAIL("the rounds do not settle");
    return end;
  }

 private:
  double play() {
    sends_.clear(), received_.clear(), link_free_.clear();
    contention_.assign(ranks_.size(), Contention(prices_.slowdown));
    for (const Message& m : std::exchange(messages_, {})) {
      contention_[size_t(m.from)].runs(device::StreamKind::pp_send, m.begin, m.end);
      contention_[size_t(m.to)].runs(device::StreamKind::pp_recv, m.begin, m.end);
    }
    for (Rank& rank : ranks_) {
      rank.next = 0, rank.ends.clear();
      rank.computed_before = std::exchange(rank.computed, {});
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r)
        while (step(int64_t(r))) moved = true;
    }
    double end = 0;
    for (const Rank& rank : ranks_) {
      CHECK(rank.next == rank.items.size());
      for (const auto& [id, ends] : rank.ends) end = std::max(end, ends.back());
    }
    return end;
  }

  struct Message {
    int64_t from, to;
    double begin, end;
  };
  struct Item {
    device::LaunchRecord record;
    uint32_t number;
  };
  struct Rank {
    std::vector<Item> items;
    size_t next = 0;
    std::map<device::StreamId, std::vector<double>> ends;
    // When it computes, in this round and in the last one.
    std::vector<std::pair<double, double>> computed, computed_before;
  };

  // By how much longer a message works, since its sender computes.
  double longer(const Rank& rank, uint32_t number, double begin) const {
    const double times = 1 + prices_.beside_compute[size_t(device::StreamKind::pp_send)];
    double now = begin, left = prices_.work[number];
    for (const auto& [from, to] : rank.computed_before) {
      if (to <= now) continue;
      if (now + left <= from) break;
      left -= std::max(0.0, from - now);
      now = std::max(now, from);
      const double end = std::min(to, now + times * left);
      left -= (end - now) / times;
      now = end;
    }
    return now + left - begin - prices_.work[number];
  }

  bool step(int64_t r) {
    Rank& rank = ranks_[size_t(r)];
    if (rank.next == rank.items.size()) return false;
    const auto& [item, number] = rank.items[rank.next];
    std::vector<double>& ends = rank.ends[item.stream];
    const double free = ends.empty() ? 0 : ends.back();
    if (item.waits_for) {
      const double over =
          item.waits_number > 0 ? rank.ends[*item.waits_for][item.waits_number - 1] : 0;
      ends.push_back(std::max(free, over));
    } else if (item.stream.kind == device::StreamKind::pp_recv) {
      const std::vector<double>& sent = sends_[{item.stream.peer, r}];
      size_t& received = received_[{item.stream.peer, r}];
      if (received == sent.size()) return false;
      ends.push_back(std::max(free, sent[received++]));
    } else if (item.stream.kind == device::StreamKind::pp_send) {
      const int64_t peer = item.stream.peer, domain = cluster_.domain_gpus;
      const bool near = r / domain == peer / domain;
      double& link_free = link_free_[{r, near}];
      const double end = std::max(free + prices_.gap, link_free) + prices_.seconds[number];
      link_free = end - (near ? cluster_.domain : cluster_.network).latency_s;
      const double begin = end - prices_.seconds[number],
                   arrival = end + longer(rank, number, begin);
      ends.push_back(arrival);
      sends_[{r, peer}].push_back(arrival);
      messages_.push_back({r, peer, begin, arrival});
    } else {
      const double begin = free + prices_.gap, seconds = prices_.seconds[number];
      const bool computes = item.stream.kind == device::StreamKind::compute;
      ends.push_back(computes ? contention_[size_t(r)].end_of(begin, seconds) : begin + seconds);
      if (computes) rank.computed.emplace_back(begin, ends.back());
    }
    ++rank.next;
    return true;
  }

  const plan::Cluster cluster_;
  std::vector<Rank> ranks_;
  std::vector<Message> messages_;
  std::vector<Contention> contention_;  // of each rank, by the messages of the last round
  LaunchPrices prices_;
  std::map<std::pair<int64_t, bool>, double> link_free_;
  std::map<std::pair<int64_t, int64_t>, std::vector<double>>
      sends_;  // ends, by sender and receiver
  std::map<std::pair<int64_t, int64_t>, size_t> received_;
};

}  // namespace

TEST_CASE("a pipeline's prediction is near the replay of all ranks at once") {
  const std::pair<int, Changes> pipelines[] = {
      {2, {"distributed.pipeline.pp_schedule=1f1b"}},
      {4, {"distributed.pipeline.pp_schedule=1f1b"}},
      {2, {"distributed.pipeline.pp_schedule=gpipe"}},
      {4, {"model.num_layers=8", "distributed.pipeline.pp_schedule=zero_bubble"}},
      {2, {"distributed.vpp_size=2", "distributed.pipeline.pp_schedule=interleaved_1f1b"}}};
  double worst = 0;
  for (auto [ranks, changes] : pipelines) {
    changes.push_back(fmt::format("distributed.pp_size={}", ranks));
    const RunPlan plan = plan_of(ranks, changes);
    INFO(fmt::format("{}", fmt::join(changes, " ")));
    const auto expect_near = [&](const plan::Cluster& c, const LaunchCosts& costs, double within) {
      CAPTURE(c.domain_gpus, costs.slowdown(device::StreamKind::pp_send));
      const double joint = JointReplay(plan, c, costs).seconds(),
                   step = StepModel(plan, c).price(costs).step_s;
      CHECK(step == Approx(joint).epsilon(within));
      return std::abs(step / joint - 1);
    };
    const plan::Cluster one = cluster(), two = cluster(2, 1), network = cluster(1, 4);
    worst = std::max(worst, expect_near(one, SheetCosts(one, {}), 0.01));
    expect_near(one, Disturbed(one), 0.01);
    expect_near(one, Contended(one), 0.01);
    expect_near(one, Contended(one, 0.3), 0.01);
    expect_near(network, Contended(network, 0.3), 0.01);
    // The hop between two domains is slow.
    expect_near(two, SheetCosts(two, {}), 0.02);
  }
  WARN("the worst is off by " << 100 * worst << " %");
}

// Communication slows nothing down, and the traffic of GEMMs counts.
class Undisturbed : public SheetCosts {
 public:
  explicit Undisturbed(const plan::Cluster& c, const StackConstants& constants = {.traffic = 1})
      : SheetCosts(c, constants) {}
  double slowdown(device::StreamKind) const override { return 0; }
};

// Returns how long the launches of a pipeline rank compute, by class.
ByClass computed_by_rank(const RunPlan& plan, int64_t pp_rank, const LaunchCosts& costs) {
  LaunchList list;
  std::vector<uint32_t> numbers;
  const auto rank = int(pp_rank * plan.mesh.stride(mesh::Axis::pp));
  const RecordedStep step = record_step(plan, rank);
  for (const device::LaunchRecord& r : step.records.items())
    if (!r.waits_for && r.stream.kind == device::StreamKind::compute)
      numbers.push_back(list.number_of(r, nullptr));
  const LaunchPrices prices = list.price(costs);
  ByClass sums{};
  for (const uint32_t n : numbers) sums[size_t(list.class_of(n))] += prices.seconds[n];
  return sums;
}

TEST_CASE("messages that take longer beside computations make a pipeline slower") {
  for (const double gbps : {4, 8}) {
    // Each rank is a domain, so messages use the network.
    const plan::Cluster c = cluster(1, gbps);
    CAPTURE(gbps);
    const auto plan_with = [&](const char* overlap) {
      return plan_of(2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zero_bubble",
                         fmt::format("comm_overlap.overlap_p2p_comm={}", overlap)});
    };
    const auto step = [&](const RunPlan& plan, const LaunchCosts& costs) {
      return StepModel(plan, c).price(costs).step_s;
    };
    const auto joint = [&](const RunPlan& plan, const LaunchCosts& costs) {
      return JointReplay(plan, c, costs).seconds();
    };
    const Contended contended(c);
    const Undisturbed without(c, {});
    const RunPlan overlaps = plan_with("true");
    const double slower = joint(overlaps, contended) - joint(overlaps, without);
    CHECK(slower > 0.015 * joint(overlaps, without));  // 1.9 and 3 %
    // It is 12 to 13 % more. A prediction looks once at what is beside a message, and later
    // messages move that; it also takes the mean over the passes of a stage. With more looks it was
    // 8 % less and 7 % more.
    CHECK(step(overlaps, contended) - step(overlaps, without) == Approx(slower).epsilon(0.13));
    // Nothing is beside the message of a rank that computes nothing until it has arrived.
    const RunPlan waits = plan_with("false");
    CHECK(step(waits, contended) == Approx(step(waits, without)));
  }
}

TEST_CASE("a predicted pipeline computes what one of its ranks has enqueued") {
  const Changes pp{"distributed.pp_size=2", "train.global_batch_size=32",
                   "train.micro_batch_size=1"},
      pairs = predict_cases::with_experts(
          {"distributed.ep_size=2", "distributed.strategy=megatron_ddp",
           "comm_overlap.overlap_moe_expert_parallel_comm=true", "distributed.vpp_size=2",
           "distributed.pipeline.pp_schedule=interleaved_1f1b"});
  const predict_cases::Case cases[] = {
      {4, pairs},
      {2, {"distributed.pipeline.pp_schedule=1f1b"}},
      {2, {"distributed.pipeline.pp_schedule=zero_bubble"}},
      {2, {"distributed.vpp_size=2", "distributed.pipeline.pp_schedule=interleaved_1f1b"}},
      {4, {"distributed.pipeline.pp_schedule=1f1b", "distributed.strategy=fsdp2"}},
      {4, {"distributed.pipeline.pp_schedule=1f1b", "distributed.strategy=megatron_ddp"}},
  };
  for (const predict_cases::Case& one : cases) {
    INFO(predict_cases::describe(one));
    const RunPlan plan = predict_cases::plan_of(one, pp);
    const plan::Cluster c = cluster(2);
    const Undisturbed costs(c);
    const Prediction p = StepModel(plan, c).price(costs);
    double nearest = 1;
    for (int64_t rank = 0; rank < plan.layout.pp; ++rank) {
      const ByClass real = computed_by_rank(plan, rank, costs);
      double worst = 0, sum = 0;
      for (const double seconds : real) sum += seconds;
      for (size_t i = 0; i < real.size(); ++i)
        worst = std::max(worst, std::abs(p.times.compute[i] - real[i]) / sum);
      nearest = std::min(nearest, worst);
    }
    // What comes before and after the actions is that of the rank that needs most time for it.
    CHECK(nearest < 2e-3);
    CHECK(sum(p.parts()) == Approx(p.step_s));
    for (const double seconds : p.times.compute) CHECK(seconds >= 0);
  }
}

TEST_CASE("gradients are reduced in the last flush of a step alone") {
  const auto predicted_with = [](int64_t local) {
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe_text(
        interchange::model_source(),
        fmt::format(
            "model: {{architecture: llama, num_layers: 4, hidden_size: 64, "
            "num_attention_heads: 4, ffn_hidden_size: 96}}\n"
            "dataset: {{train: unused, seq_length: 32}}\n"
            "step_scheduler: {{global_batch_size: 32, local_batch_size: {}, max_steps: 20}}\n"
            "distributed: {{pp_size: 2, strategy: megatron_ddp, "
            "pipeline: {{pp_schedule: 1f1b, pp_microbatch_size: 1}}}}\n"
            "mixed_precision: fp32\ntrain: {{run_dir: unused}}\n",
            local),
        "flushes.yaml", {}, diagnostics, 4);
    diagnostics.throw_if_errors();
    const RunPlan plan = plan::make_plan(r, 4, 256);
    CHECK(plan.layout.flushes == 16 / local);
    return predicted(plan);
  };
  const Prediction one = predicted_with(16), four = predicted_with(4);
  CHECK(one.busy("dp") > 0);
  CHECK(four.busy("dp") == Approx(one.busy("dp")).epsilon(1e-6));
  CHECK(four.busy("pp") == Approx(one.busy("pp")).epsilon(1e-6));
  CHECK(four.step_s > one.step_s);  // by three bubbles
  CHECK(four.bubble_s > 2 * one.bubble_s);
}

TEST_CASE("a scope names its action") {
  const auto b = action_of("1B12 > layers.3.attention");
  REQUIRE(b);
  CHECK(b->kind == schedule::ActionKind::B);
  CHECK(b->stage == 1);
  CHECK(b->micro_batch == 12);
  CHECK_FALSE(b->delayed);
  CHECK(action_of("delayed 0B3 > layers.0.mlp")->delayed);
  CHECK(action_of("2UNSHARD")->kind == schedule::ActionKind::unshard);
  CHECK(action_of("0SEND_F3")->kind == schedule::ActionKind::send_f);
  CHECK_FALSE(action_of("optimizer"));
  CHECK_FALSE(action_of("3x"));
}

TEST_CASE("the parts of a predicted step add up to it") {
  for (const auto& [ranks, changes] : kLayouts) {
    INFO(fmt::format("{} ranks: {}", ranks, fmt::join(changes, " ")));
    const RunPlan plan = plan_of(ranks, changes);
    const Prediction p = predicted(plan);
    CHECK(p.step_s > 0);
    CHECK(sum(p.parts()) == Approx(p.step_s));
    CHECK(p.tokens_per_s == Approx(24 * 32 / p.step_s));
    CHECK(p.mfu > 0);
    CHECK(p.mfu < 1);
    CHECK(p.memory.size() == size_t(plan.layout.pp));
    CHECK(p.band.share == 0.4);
  }
}

TEST_CASE("a step of many micro-batches takes as long as all its launches") {
  for (const auto& [ranks, changes] : kLayouts) {
    const RunPlan plan = plan_of(ranks, changes);
    if (plan.layout.pp > 1) continue;
    INFO(fmt::format("{} ranks: {}", ranks, fmt::join(changes, " ")));
    const plan::Cluster c = cluster();
    const SheetCosts costs(c, {});
    GroupLinks links(plan, c);
    LaunchList list;
    const LaunchSequence all = sequence_of(record_step(plan, 0).records, list, links);
    const ReplayTimes t = replay(all, list, list.price(costs), ReplayEnd::all_streams);
    CHECK(predicted(plan).step_s == Approx(t.seconds).epsilon(1e-3));
  }
}

// Deep models, so that few layers stand for many.
TEST_CASE("a step of few layers and micro-batches predicts the step of all of them") {
  const Changes deep{"model.num_layers=24", "train.global_batch_size=64",
                     "train.micro_batch_size=1"};
  const plan::Cluster c = cluster();
  const SheetCosts costs(c, {});
  double worst = 0;
  const auto expect_equal = [&](const predict_cases::Case& one) {
    INFO(predict_cases::describe(one));
    const RunPlan plan = predict_cases::plan_of(one, deep);
    if (!recording_obstacle(plan).empty()) return;
    const Prediction few = StepModel(plan, c).price(costs),
                     all = StepModel(plan, c, RecordedParts::all).price(costs);
    CHECK(few.step_s == Approx(all.step_s).epsilon(1e-3));
    worst = std::max(worst, std::abs(few.step_s / all.step_s - 1));
    for (const char* axis : {"tp", "cp", "ep", "dp", "pp"}) {
      CAPTURE(axis, few.exposed(axis), all.exposed(axis));
      CHECK(std::abs(few.exposed(axis) - all.exposed(axis)) <= 1e-3 * all.step_s);
      CHECK(few.busy(axis) == Approx(all.busy(axis)).epsilon(1e-2));
    }
  };
  for (const predict_cases::Case& one : predict_cases::kFamilies) expect_equal(one);
  for (const predict_cases::Case& one : predict_cases::kLayouts) expect_equal(one);
  WARN("the worst is off by " << 100 * worst << " %");
}

// A stage of a pipeline of two computes half of the layers; the head is in the last one.
TEST_CASE("a pipeline takes the time of its slowest stage, and its bubble") {
  const Prediction alone = predicted(plan_of(1, {})),
                   two = predicted(plan_of(
                       2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}));
  CHECK(two.step_s > alone.step_s / 2);
  CHECK(two.step_s < alone.step_s);
  CHECK(two.bubble_s > 0);
}

TEST_CASE("groups that leave a domain use the network") {
  const Changes tp{"distributed.tp_size=2", "distributed.sequence_parallel=true"};
  const Prediction in_domain = predicted(plan_of(2, tp)),
                   across = predicted(plan_of(2, tp), cluster(1));
  CHECK(across.exposed("tp") > 1.5 * in_domain.exposed("tp"));
}

TEST_CASE("a group's link is that of the slowest group along its axes") {
  for (const predict_cases::Case& one : predict_cases::kLayouts) {
    if (one.ranks < 4) continue;
    INFO(predict_cases::describe(one));
    const RunPlan plan = predict_cases::plan_of(one);
    for (const int64_t domain : {1, 2, 3, 4}) {
      CAPTURE(domain);
      const plan::Cluster c = cluster(domain);
      GroupLinks links(plan, c);
      for (const mesh::Mesh& mesh : {plan.mesh, plan.moe_mesh()})
        for (const mesh::Mesh::AxisSize& axis : mesh.axes()) {
          const std::vector<int64_t> group = mesh.group(0, {axis.axis});
          const plan::GroupLink slowest = plan::link_of(c, mesh, {axis.axis}),
                                found = links.of({group.begin(), group.end()});
          CAPTURE(mesh::axis_name(axis.axis));
          CHECK(found.domains == slowest.domains);
          CHECK(found.per_domain == slowest.per_domain);
        }
    }
  }
}

// The costs of messages, and of the streams of data parallelism, are extrapolated.
class Unmeasured : public SheetCosts {
 public:
  explicit Unmeasured(const plan::Cluster& c) : SheetCosts(c, {}) {}
  LaunchCost cost(const LaunchWork& launch, const plan::GroupLink* link) const override {
    LaunchCost c = SheetCosts::cost(launch, link);
    c.known = !link;
    return c;
  }
};

TEST_CASE("communication between computations counts as extrapolated, too") {
  const plan::Cluster c = cluster();
  const Unmeasured costs(c);
  const auto expect_all_unknown = [&](int ranks, const Changes& changes) {
    INFO(fmt::format("{}", fmt::join(changes, " ")));
    const Prediction p = StepModel(plan_of(ranks, changes), c).price(costs);
    double busy = 0;
    for (const char* axis : {"tp", "cp", "ep", "dp"}) busy += p.busy(axis);
    CHECK(p.times.unknown >= 0.99 * busy);
    // A message is at work for its receiver also while it waits for the link.
    CHECK(p.times.unknown <= 1.01 * (busy + p.busy("pp")));
    CHECK((p.busy("pp") == 0 || p.times.unknown > busy));
  };
  const Changes pp{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"};
  expect_all_unknown(2, pp);
  for (const char* strategy : {"fsdp2", "megatron_ddp"}) {
    Changes sharded = pp;
    sharded.push_back(fmt::format("distributed.strategy={}", strategy));
    expect_all_unknown(4, sharded);
  }
}

TEST_CASE("a calibration that says little of the step widens the band") {
  plan::Cluster c = cluster();
  const RunPlan plan = plan_of(1, {});
  CHECK(band_of(plan, c, 0).share == 0.4);
  c.calibration = "m.yaml";
  CHECK(band_of(plan, c, 0.05).share == 0.1);
  CHECK(band_of(plan, c, 0.2).share == 0.3);
  CHECK(band_of(plan, c, 0.8).share == 0.4);
}

// A training measures the peak of its rank's threads, and CPUs compute fp16 as fp32.
TEST_CASE("MFU is over the peak that a training's log takes") {
  plan::Cluster c = cluster();
  c.fp32_flops = 1e12, c.bf16_flops = 3e12, c.fp8_flops = 7e12;
  const auto peak = [&](const Changes& changes) { return peak_flops(plan_of(1, changes), c); };
  CHECK(peak({}) == 1e12);
  CHECK(peak({"mixed_precision=bf16_mixed"}) == 3e12);
  CHECK(peak({"mixed_precision=fp16_mixed"}) == 1e12);
  CHECK(peak({"mixed_precision={name: bf16_mixed, fp8: hybrid}", "debug.emulate_fp8=true",
              "model.hidden_size=128"}) == 3e12);
  CHECK(peak({"train.threads=2"}) == 2e12);
}

// It took 37 ms beside other work; the bound only finds a multiple of that.
TEST_CASE("a step of 405B on 16,384 ranks is predicted in a moment") {
  Diagnostics diagnostics;
  const Recipe recipe =
      plan::load_recipe(interchange::model_source(),
                        MTRAIN_SOURCE_DIR "/recipes/llama3_1_405b.yaml", {}, diagnostics, 16384);
  const plan::Cluster c =
      plan::read_cluster_text("gpu: h100\nnodes: 2048\n", "cluster.yaml", diagnostics);
  diagnostics.throw_if_errors();
  const RunPlan plan = plan::make_plan(recipe, 16384, recipe.model.vocab_size);
  const SheetCosts costs(c, {});
  std::clock_t begin = std::clock();
  const auto ms = [&] {
    const double passed = double(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC;
    begin = std::clock();
    return passed;
  };
  const StepModel model(plan, c);
  const double recording = ms();
  const Prediction p = model.price(costs);
  const double pricing = ms();
  WARN("405B: recorded in " << recording << " ms, priced in " << pricing << " ms");
  CHECK(recording < 500);
  CHECK(pricing < 50);
  CHECK(p.mfu > 0.3);
  CHECK(p.mfu < 0.6);
}

TEST_CASE("exposed communication is not above what is at work") {
  const plan::Cluster c = cluster();
  for (const predict_cases::Case& one : predict_cases::kLayouts) {
    const RunPlan plan = predict_cases::plan_of(one);
    if (!recording_obstacle(plan).empty()) continue;
    INFO(predict_cases::describe(one));
    StackConstants constants;
    constants.launch_s = 1e-4;  // gaps are long beside this model's communication
    const Prediction p = StepModel(plan, c).price(SheetCosts(c, constants));
    for (const char* axis : {"tp", "cp", "ep", "dp", "pp"}) {
      CAPTURE(axis);
      CHECK(p.exposed(axis) <= p.busy(axis) * (1 + 1e-9));
    }
  }
}

}  // namespace predict_step_model_test
