// Tests settings that change when a pipeline's work runs: the flags of the fine-grained 1F1B, and
// deferred weight gradients of the output layer. Runs under the stream sanitizer.
#include <set>

#include "plan/layout.h"
#include "plan/run_plan.h"
#include "train_pipeline_testing.h"

namespace parity_fine_grained_test {

using namespace pipeline_testing;

namespace {
// Returns the first launch from `first` on whose scope and name begin with these texts, or the
// number of launches.
size_t find_launch(const PipelineResult& r, const std::string& action, const std::string& name,
                   size_t first = 0) {
  for (size_t i = first; i < r.launches.size(); ++i)
    if (r.launches[i].action.starts_with(action) && r.launches[i].name.starts_with(name)) return i;
  return r.launches.size();
}

size_t count_launches(const PipelineResult& r, const std::string& action, const std::string& end) {
  return size_t(std::ranges::count_if(r.launches, [&](const LaunchedParts& l) {
    return l.action.starts_with(action) && l.name.ends_with(end);
  }));
}
}  // namespace

TEST_CASE("the fine-grained 1F1B's flags move work, and change no bit of the results") {
  for (const char* schedule : {"interleaved_1f1b", "dualpipev"})
    for (const bool sharded : {false, true}) {
      const Changes base =
          with(with(pipeline_layout(schedule, 2, 2), sharded ? kFsdp2 : kMegatron), batch(16));
      const auto plain = train_pipeline(4, base, 4);
      for (int flags = 0; flags < 16; ++flags) {
        // The first strategy has all combinations of flags, the second every third.
        if (sharded && flags % 3 != 0) continue;
        Changes asked = with(base, kPairs);
        for (const auto& [bit, flag] :
             {std::pair{1, kGradientsFirst}, {2, kTwoLayers}, {4, kWholeLayers}, {8, kSplit}})
          if (flags & bit) asked = with(asked, flag);
        CAPTURE(schedule, sharded, flags);
        const auto ranks = train_pipeline(4, asked, 4);
        for (size_t r = 0; r < ranks.size(); ++r) {
          CAPTURE(r);
          CHECK((ranks[r].losses == plain[r].losses));
          CHECK((ranks[r].norms == plain[r].norms));
          CHECK((ranks[r].weights == plain[r].weights));
          CHECK(ranks[r].evaluation == plain[r].evaluation);
          CHECK(ranks[r].executed == ranks[r].listed);
        }
      }
    }
}

TEST_CASE("launches of a forward and a backward that run together are timed as part of a pair") {
  const Changes base = with(pipeline_layout("interleaved_1f1b", 2, 2), batch(8));
  for (const bool pairs : {false, true}) {
    const auto ranks = train_pipeline(2, pairs ? with(base, kPairs) : base, 1);
    for (const PipelineResult& r : ranks) {
      std::set<std::string> paired;
      for (size_t i = 0; i + 1 < r.actions.size(); ++i)
        if (r.actions[i].overlaps_next)
          paired.insert({to_string(r.actions[i]), to_string(r.actions[i + 1])});
      CHECK(paired.empty() == !pairs);
      CHECK(paired.size() < r.actions.size());
      for (const LaunchedParts& l : r.launches) {
        if (l.stream != device::StreamKind::compute) continue;
        CAPTURE(pairs, l.action, l.name);
        CHECK(l.paired == paired.contains(l.action));
      }
    }
  }
}

TEST_CASE("the fine-grained 1F1B trains as a single rank does") {
  struct Case {
    int ranks;
    Changes model, layout;
    double bound = 1e-5;
    std::string backend = "thread";
  };
  const Changes all = with(with(kGradientsFirst, kTwoLayers), with(kWholeLayers, kSplit));
  const auto fine = [&](int pp, const Changes& more) {
    return with(with(pipeline_layout("interleaved_1f1b", pp, 2), more),
                pp == 4 ? with(kGradientsFirst, kWholeLayers) : all);
  };
  const Changes sequence{"distributed.tp_size=2", "distributed.sequence_parallel=true"};
  const std::vector<Case> cases{
      {2, kTied, fine(2, {})},
      {4, {}, fine(4, {})},
      {8, kGpt2, fine(4, kFsdp2)},
      {4, kTied, fine(2, kAtOnce)},
      {4, kTied, with(with(pipeline_layout("dualpipev", 2, 2), all), kMegatron)},
      {2, {}, fine(2, {"recompute.granularity=full"})},
      {2,
       {},
       fine(2, {"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=1"})},
      {4, kGpt2, fine(2, sequence)},
      {8, kTied, fine(2, with(sequence, {"distributed.cp_size=2"}))},
      {2, {"model.num_layers=7"}, with(pipeline_layout("interleaved_1f1b", 2, 3), kGradientsFirst)},
      {2, {}, with(pipeline_layout("dfs", 2, 4), kWholeLayers), 1e-5, "gloo"},
      {4, {}, fine(4, {}), 1e-5, "shared_memory"},
      {4, {"mixed_precision.name=bf16_mixed"}, fine(2, kFsdp2), 2e-2}};
  for (const Case& c : cases) {
    CAPTURE(c.ranks, c.model, c.layout, c.backend);
    const Changes model = with(c.model, batch(16));
    check_parity(alone(model, compared_steps(10)),
                 train_pipeline(c.ranks, with(model, c.layout), compared_steps(10), c.backend),
                 c.bound);
  }
}

namespace {
// The second rank's launches of a step.
PipelineResult second_rank(const Changes& changes) {
  return train_pipeline(2, with(with(pipeline_layout("interleaved_1f1b", 2, 2), batch(8)), changes),
                        1)[1];
}

// The second rank's first pair, whose backward is that of the head's stage.
struct Pair {
  std::string f, b, sent;
  explicit Pair(const PipelineResult& r) {
    for (size_t i = 0; i + 1 < r.listed.size() && f.empty(); ++i)
      if (r.listed[i][1] == 'B' && r.listed[i + 1][1] == 'F') b = r.listed[i], f = r.listed[i + 1];
    REQUIRE(b == "3B0");
    sent = "3SEND_B0";
  }
  // The order in which the two are computed: the letters of successive launches.
  std::string turns(const PipelineResult& r) const {
    std::string order;
    for (const LaunchedParts& l : r.launches)
      if (l.stream == device::StreamKind::compute && (l.action == f || l.action == b)) {
        const char which = l.action == f ? 'F' : 'B';
        if (order.empty() || order.back() != which) order += which;
      }
    return order;
  }
  size_t end_of_forward(const PipelineResult& r) const {
    size_t end = 0;
    for (size_t i = 0; i < r.launches.size(); ++i)
      if (r.launches[i].action == f) end = i;
    return end;
  }
};
}  // namespace

TEST_CASE("each flag of the fine-grained 1F1B moves its launches") {
  const PipelineResult plain = second_rank({}), pairs = second_rank(kPairs),
                       first = second_rank(kGradientsFirst), two = second_rank(kTwoLayers),
                       whole = second_rank(kWholeLayers),
                       split = second_rank(with(kTwoLayers, kSplit));
  const Pair pair(pairs);
  CHECK(find_launch(plain, "delayed", "") == plain.launches.size());
  CHECK(plain.listed != pairs.listed);
  // Backward: the head, and two layers of two segments each. Forward: two layers, and the head or
  // the handoff.
  for (const auto* r : {&pairs, &first, &two, &whole, &split})
    CHECK(pair.turns(*r) == "BFBFBFBFBF");
  for (const auto* r : {&two, &whole, &split}) CHECK(r->listed == pairs.listed);
  // The gradient is sent when both have ended, or before the end of the forward.
  for (const auto* r : {&pairs, &two, &whole, &split})
    CHECK(find_launch(*r, pair.sent, "") > pair.end_of_forward(*r));
  CHECK(find_launch(first, pair.sent, "") < pair.end_of_forward(first));
  // The weight gradients of so many layers come after the send.
  for (const auto& [r, proj, fc2] :
       {std::tuple{&pairs, 1, 0}, {&first, 1, 0}, {&two, 2, 0}, {&whole, 1, 1}}) {
    CHECK(count_launches(*r, "delayed " + pair.b, "matmul_proj_wgrad") == size_t(proj));
    CHECK(count_launches(*r, "delayed " + pair.b, "matmul_qkv_wgrad") == size_t(proj));
    CHECK(count_launches(*r, "delayed " + pair.b, "matmul_fc1_wgrad") == size_t(fc2));
    CHECK(count_launches(*r, "delayed " + pair.b, "matmul_fc2_wgrad") == size_t(fc2));
    CHECK(find_launch(*r, "delayed " + pair.b, "") > find_launch(*r, pair.sent, ""));
    // The first stage sends no gradient, so its weight gradients are not delayed.
    CHECK(count_launches(*r, "delayed 0B", "wgrad") == 0);
  }
  // If split, the weight gradients of a segment come after its last input gradient.
  const auto gap = [&](const PipelineResult& r) {
    const size_t fc2 = find_launch(r, pair.b, "matmul_fc2_wgrad");
    return int64_t(find_launch(r, pair.b, "matmul_fc1_dgrad")) - int64_t(fc2);
  };
  CHECK(gap(two) > 0);
  CHECK(gap(split) < 0);
}

namespace {
// Counts the pairs of passes after which a computation waits for the sent gradient, and the pairs
// after which none waits. Delayed weight gradients never wait.
struct Waits {
  int64_t computations = 0, beside = 0, delayed = 0;
};
Waits waits_for_gradients(const Changes& changes) {
  const Setup setup(with(with(pipeline_layout("interleaved_1f1b", 2, 2), batch(8)), changes), 2);
  Waits waits;
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, setup.recipe, setup.data, rank.world);
    Stream* channel = nullptr;
    uint64_t item = 0;  // the item that sends the gradient of the last pair
    rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo&) {
      if (rank.rank() != 1) return;
      const std::string action = rank.device.scope().substr(0, rank.device.scope().find(" > "));
      if (stream.id().kind == device::StreamKind::pp_send && action.find("SEND_B") != action.npos)
        channel = &stream, item = stream.enqueued();
      if (stream.id() != device::StreamKind::compute || !channel || action.empty()) return;
      const bool after = stream.comes_after(*channel, item);
      if (action.starts_with("delayed"))
        waits.delayed += after;
      else if (action[1] == 'F')
        after ? ++waits.computations : ++waits.beside;
    });
    t.step();
    rank.device.set_launch_check({});
  });
  return waits;
}
}  // namespace

TEST_CASE("a paired gradient is ordered with compute, or travels beside it") {
  const Waits in_order = waits_for_gradients(kPairs),
              at_once = waits_for_gradients(kGradientsFirst);
  CHECK(in_order.computations > 0);
  CHECK(in_order.beside == 0);
  CHECK(in_order.delayed == 0);
  CHECK(at_once.beside > 0);
}

TEST_CASE("deferred weight gradients of the output layer run last, with the same bits") {
  const Changes defer{"comm_overlap.defer_embedding_wgrad_compute=true"},
      three{"comm_overlap.wgrad_deferral_limit=3"};
  struct Case {
    int ranks;
    Changes model, layout;
  };
  // In the fourth case the gradients of all ranks are added once instead of after every
  // micro-batch, which changes the order of a sum and therefore its rounding.
  for (const Case& c : std::vector<Case>{
           {2, {}, pipeline_layout("1f1b", 2)},
           {4, kTied, with(pipeline_layout("interleaved_1f1b", 2, 2), kMegatron)},
           {4, kTied, with(with(pipeline_layout("interleaved_1f1b", 2, 2), kFsdp2), kWholeLayers)},
           {4, {}, with(pipeline_layout("zero_bubble", 2), kAtOnce)},
           {4, kTied, with(pipeline_layout("gpipe", 2), {"distributed.tp_size=2"})}}) {
    const Changes base = with(with(c.model, c.layout), batch(16));
    const auto off = train_pipeline(c.ranks, base, 4),
               all = train_pipeline(c.ranks, with(base, defer), 4),
               some = train_pipeline(c.ranks, with(with(base, defer), three), 4);
    CAPTURE(c.ranks, c.model, c.layout);
    for (const auto* on : {&all, &some})
      for (size_t r = 0; r < off.size(); ++r) {
        check_close((*on)[r].losses, off[r].losses, 1e-6);
        if (c.layout.back() == kAtOnce.back()) continue;
        CHECK(((*on)[r].losses == off[r].losses));
        CHECK(((*on)[r].weights == off[r].weights));
        CHECK(((*on)[r].norms == off[r].norms));
      }
    const PipelineResult &last = all.back(), &last_of_some = some.back();
    const Setup s(with(base, defer), c.ranks);
    const int64_t micro_batches = plan::layout_of(s.recipe, c.ranks).micro_batches;
    const char* wgrad = "matmul_output_wgrad";
    CHECK(count_launches(last, "deferred output", wgrad) == size_t(micro_batches));
    CHECK(count_launches(last_of_some, "deferred output", wgrad) == 3);
    CHECK(count_launches(last_of_some, "", wgrad) == size_t(micro_batches));
    CHECK(count_launches(off.back(), "deferred", "") == 0);
    // The deferred gradients come after all other actions of the schedule.
    const std::string end = last.listed.back();
    CHECK(find_launch(last, "deferred output", "") > find_launch(last, end, ""));
    // The memory kept is what the plan says, except for the logits of one micro-batch, which exist
    // in any case.
    const auto planned = [&](const Changes& changes) {
      const Setup one(changes, c.ranks);
      const plan::Layout l = plan::layout_of(one.recipe, c.ranks);
      return plan::make_plan(one.recipe, l.world, kVocab).memory.back().logits;
    };
    const double kept = double(last.peak_activations - off.back().peak_activations),
                 expected = planned(with(base, defer)) - planned(base);
    CAPTURE(kept, expected);
    CHECK(kept <= 1.05 * expected);
    CHECK(kept >= 0.95 * expected * double(micro_batches - 1) / double(micro_batches));
    CHECK(last_of_some.peak_activations < last.peak_activations);
  }
}

TEST_CASE("the overlap settings decide when parameters of stages are gathered, and change no bit") {
  const Changes apart{"ddp.align_param_gather=false"},
      during{"ddp.overlap_param_gather_with_optimizer_step=true"};
  const Changes base = with(with(pipeline_layout("interleaved_1f1b", 2, 2), kMegatron), batch(8));
  const auto plain = train_pipeline(4, with(base, {"ddp.overlap_param_gather=false"}), 4);
  // The first step's updates (U) and gathers (g), without repetitions.
  const auto order = [](const PipelineResult& r) {
    std::string text;
    for (const LaunchedParts& l : r.launches) {
      const char what = l.name == "adamw"                          ? 'U'
                        : l.stream == device::StreamKind::dp_param ? 'g'
                                                                   : ' ';
      if (what != ' ' && (text.empty() || text.back() != what)) text += what;
    }
    return text;
  };
  struct Case {
    Changes flags;
    const char *first, *second;  // orders of the pipeline's two ranks
  };
  // The first rank's first stage has three units, the second's two.
  for (const Case& c : std::vector<Case>{{{}, "Ug", "Ug"},
                                         {during, "UgUgUgUg", "UgUgUg"},
                                         {apart, "gU", "gU"},
                                         {with(apart, during), "gUgUgUgU", "gUgUgU"}}) {
    CAPTURE(c.flags);
    const auto ranks = train_pipeline(4, with(base, c.flags), 4);
    for (size_t r = 0; r < ranks.size(); ++r) {
      CHECK((ranks[r].losses == plain[r].losses));
      CHECK((ranks[r].weights == plain[r].weights));
      CHECK(ranks[r].evaluation == plain[r].evaluation);
      CHECK(order(ranks[r]) == (r < 2 ? c.first : c.second));
    }
  }
}

TEST_CASE("buckets and gathers belong to one stage each") {
  const Changes base = with(with(pipeline_layout("interleaved_1f1b", 2, 2), batch(8)),
                            {"distributed.strategy=megatron_ddp", "ddp.align_param_gather=false"});
  const auto ranks = train_pipeline(4, base, 3),
             small = train_pipeline(4, with(base, {"ddp.bucket_size=1"}), 3),
             late = train_pipeline(4, with(base, {"ddp.overlap_grad_reduce=false"}), 3);
  for (size_t r = 0; r < ranks.size(); ++r) {
    const PipelineResult& result = ranks[r];
    // A rank's stages, of two layers each, and the bytes of their units.
    const int64_t pp = int64_t(r) / 2;
    std::map<int64_t, int64_t> bytes;
    for (const auto& [name, size] : result.units)
      bytes[name == "embedding"           ? 0
            : name == "output"            ? 3
            : name.starts_with("layers.") ? std::stoll(name.substr(7)) / 2
                                          : -1] += size;
    REQUIRE(bytes.size() == 2);
    std::map<std::string, int64_t> reduced, gathered;
    for (const LaunchedParts& l : result.launches) {
      if (l.name == "reduce_scatter") reduced[l.action] += 2 * l.wire_bytes;
      if (l.stream == device::StreamKind::dp_param) gathered[l.action] += 2 * l.wire_bytes;
    }
    CAPTURE(r, reduced, gathered, bytes);
    // All gradients of a rank would fit into one bucket. Yet a stage's bucket is reduced in the
    // stage's last backward.
    const std::string first = fmt::format("{}B3", pp), second = fmt::format("{}B3", pp + 2);
    CHECK(reduced == std::map<std::string, int64_t>{{first, bytes[pp]}, {second, bytes[pp + 2]}});
    // The first stage's units are gathered one ahead, and all of the second's before its own
    // forward.
    CHECK(gathered ==
          std::map<std::string, int64_t>{{fmt::format("{}F0", pp), bytes[pp] + bytes[pp + 2]}});
    for (const auto* other : {&small, &late}) {
      CHECK(((*other)[r].losses == result.losses));
      CHECK(((*other)[r].weights == result.weights));
    }
  }
}

TEST_CASE("sharded parameters and gradients of stages travel when the list says") {
  struct Case {
    const char* schedule;
    int stages;  // per rank
    bool defer;
  };
  for (const Case& c : std::vector<Case>{{"1f1b", 1, true},
                                         {"1f1b", 1, false},
                                         {"interleaved_1f1b", 2, true},
                                         {"interleaved_1f1b", 4, true},
                                         {"interleaved_1f1b", 4, false},
                                         {"zero_bubble", 4, true},
                                         {"looped_bfs", 4, true}}) {
    CAPTURE(c.schedule, c.stages, c.defer);
    const Changes model = batch(8);
    const auto ranks = train_pipeline(
        4, with(model, with(pipeline_layout(c.schedule, 2, c.stages), c.defer ? kFsdp2 : kAtOnce)),
        compared_steps(10));
    check_parity(alone(model, compared_steps(10)), ranks);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const PipelineResult& r = ranks[rank];
      std::map<std::string, int64_t> sent;
      for (const LaunchedParts& l : r.launches)
        sent[stream_name(l.stream) + " " + l.name] += l.wire_bytes;
      // With two ranks, half of everything travels each way. A stage that is resharded gives the
      // memory of its layers to another stage; tables have memory of their own.
      std::map<int64_t, int64_t> gathers;
      for (const schedule::Action& a : r.actions)
        if (a.kind == schedule::ActionKind::unshard) ++gathers[a.stage];
      const int64_t layers = 8 / (2 * c.stages), micro_batches = 4;
      int64_t gathered = 0, whole = 0;
      for (const auto& [name, bytes] : r.units) {
        whole += bytes / 2;
        const int64_t stage =
            name.starts_with("layers.") ? std::stoll(name.substr(7)) / layers : -1;
        gathered += bytes / 2 * (stage < 0 ? 1 : gathers.at(stage));
      }
      CAPTURE(rank);
      CHECK(sent["dp_param all_gather"] == gathered);
      CHECK((gathered > whole) == (c.stages > 3));
      CHECK(sent["dp_grad reduce_scatter"] == (c.defer ? 1 : micro_batches) * whole);
    }
  }
}

}  // namespace parity_fine_grained_test
