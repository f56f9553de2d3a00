// Compares pipelines with a single rank: losses, gradients, weights and checkpoints. Runs under the
// stream sanitizer.
#include <fstream>

#include "plan/layout.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "train_pipeline_testing.h"

namespace parity_pipeline_test {

using namespace mtrain;
using namespace pipeline_testing;
namespace fs = std::filesystem;

TEST_CASE("every schedule trains as a single rank does") {
  struct Case {
    int pp, dp;
    int rounds;  // micro-batches / pp
    Changes strategy;
  };
  for (size_t k = 0; k < kKinds.size(); ++k) {
    const Kind& kind = kKinds[k];
    const bool twice = std::string(kind.name) == "dualpipev";
    std::vector<Case> cases{{2, 1, 2, kMegatron}, {2, 2, twice ? 2 : 1, kFsdp2}};
    // In turn, so that each kind runs over more ranks.
    if (k % 2 == 0)
      cases.push_back({4, 1, twice || k % 4 == 0 ? 2 : 1, kFsdp2});
    else
      cases.push_back({2, 2, 2, kMegatron});
    for (const Case& c : cases) {
      CAPTURE(kind.name, kind.stages, c.pp, c.dp, c.rounds, c.strategy);
      const Changes model = batch(c.pp * c.rounds * c.dp);
      const auto ranks = train_pipeline(
          c.pp * c.dp, with(with(model, pipeline_layout(kind.name, c.pp, kind.stages)), c.strategy),
          compared_steps(20));
      check_parity(alone(model), ranks);
    }
  }
}

TEST_CASE("odd numbers of micro-batches, and four stages per rank, train as a single rank does") {
  struct Case {
    const char* schedule;
    int pp, stages, micro_batches;
    int dp = 1;
  };
  const Changes sixteen{"model.num_layers=16"};
  const std::vector<Case> cases{{"1f1b", 2, 1, 5},
                                {"1f1b", 4, 1, 3},
                                {"gpipe", 4, 1, 3},
                                {"zero_bubble", 2, 1, 3},
                                {"zero_bubble", 2, 2, 3},
                                {"v_schedule", 2, 2, 3},
                                {"dualpipev", 2, 2, 5},
                                {"looped_bfs", 2, 2, 3},
                                {"interleaved_1f1b", 4, 2, 7},
                                {"dfs", 4, 2, 7},
                                {"interleaved_1f1b", 2, 4, 4},
                                {"looped_bfs", 2, 4, 4},
                                {"dfs", 2, 4, 4},
                                {"zero_bubble", 2, 4, 4},
                                {"interleaved_1f1b", 2, 4, 4, 2},
                                {"interleaved_1f1b", 4, 4, 8},
                                {"zero_bubble", 4, 4, 4},
                                {"looped_bfs", 4, 4, 5}};
  size_t turn = 0;
  for (const Case& c : cases) {
    CAPTURE(c.schedule, c.pp, c.stages, c.micro_batches, c.dp);
    Changes model = batch(c.micro_batches * c.dp);
    if (c.pp * c.stages > 8) model = with(model, sixteen);
    const auto ranks = train_pipeline(c.pp * c.dp,
                                      with(with(model, pipeline_layout(c.schedule, c.pp, c.stages)),
                                           turn++ % 2 ? kMegatron : kFsdp2),
                                      compared_steps(10));
    check_parity(alone(model, compared_steps(10)), ranks);
  }
}

TEST_CASE("pipelines train every model, split and strategy as a single rank does") {
  struct Case {
    int ranks;
    Changes model, layout;
    double bound = 1e-5;
    std::string backend = "thread";
  };
  const Changes bf16{"mixed_precision.name=bf16_mixed"}, full{"recompute.granularity=full"},
      groups{"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=3"},
      selective{"recompute.granularity=selective"};
  const auto tp = [](bool sequence) {
    return Changes{"distributed.tp_size=2",
                   fmt::format("distributed.sequence_parallel={}", sequence)};
  };
  const Changes uneven{"model.num_layers=7"};
  const std::vector<Case> cases{
      // The tied table on two ranks, under every way to shard it; and on one rank.
      {2, kTied, pipeline_layout("1f1b", 2)},
      {4, kTied, with(pipeline_layout("interleaved_1f1b", 2, 2), kFsdp2)},
      {4, kTied, with(pipeline_layout("zero_bubble", 2), kMegatron)},
      {4, kTied, with(pipeline_layout("v_schedule", 2, 2), kAtOnce)},
      {8, kGpt2, with(pipeline_layout("zero_bubble", 2, 2), kFsdp2)},
      {4, kCapped, with(pipeline_layout("interleaved_1f1b", 2, 2), kFsdp2)},
      {2, kCapped, with(pipeline_layout("1f1b", 2), full)},
      {8, kCapped,
       with(with(pipeline_layout("zero_bubble", 2), tp(true)), {"distributed.cp_size=2"})},
      {4, kGpt2, with(pipeline_layout("1f1b", 2), kMegatron)},
      {4, kGpt2, with(pipeline_layout("v_schedule", 4, 2), full)},
      // Gradients that are reduced while other micro-batches still add to them.
      {4, {}, with(pipeline_layout("gpipe", 2), kAtOnce)},
      {4, {}, with(pipeline_layout("zero_bubble", 2), kAtOnce)},
      {4, kTied, with(pipeline_layout("zero_bubble", 2, 2), kAtOnce)},
      {4,
       {},
       with(pipeline_layout("1f1b", 2),
            {"distributed.strategy=fsdp2", "distributed.reshard_after_forward=true"})},
      {8,
       {},
       with(pipeline_layout("dualpipev", 2, 2),
            {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"})},
      // Splits of the layers.
      {3, uneven, pipeline_layout("1f1b", 3)},
      {2, uneven, with(pipeline_layout("interleaved_1f1b", 2, 3), groups)},
      {4, {}, {"distributed.pp_size=4", "distributed.pipeline.layout=Et|t*3|t*4|L"}},
      {8,
       {},
       {"distributed.pp_size=4", "distributed.pipeline.layout=Et*4||t*4|L",
        "distributed.strategy=fsdp2"}},
      {2, {}, with(pipeline_layout("zero_bubble", 2), selective)},
      // Cases with tensor and sequence parallelism, with other backends, and in bf16.
      {4, {}, with(pipeline_layout("1f1b", 2), tp(false))},
      {4, kTied, with(pipeline_layout("interleaved_1f1b", 2, 2), tp(true))},
      {8, kGpt2, with(with(pipeline_layout("zero_bubble", 2), tp(true)), kFsdp2)},
      {8, kTied, with(with(pipeline_layout("1f1b", 2), tp(true)), {"distributed.cp_size=2"})},
      {4, kGpt2,
       with(pipeline_layout("v_schedule", 2, 2),
            {"distributed.cp_size=2", "distributed.cp_comm_type=all_gather"})},
      {16,
       {},
       with(with(pipeline_layout("zero_bubble", 2, 2), tp(true)), {"distributed.cp_size=2"})},
      {2, kTied, pipeline_layout("1f1b", 2), 1e-5, "gloo"},
      {4, kTied, pipeline_layout("interleaved_1f1b", 4, 2), 1e-5, "shared_memory"},
      {4, with(bf16, kTied), pipeline_layout("1f1b", 4), 2e-2},
      {4, bf16, with(pipeline_layout("zero_bubble", 2, 2), kFsdp2), 2e-2}};
  for (const Case& c : cases) {
    CAPTURE(c.ranks, c.model, c.layout, c.backend);
    const Changes model = with(c.model, batch(16));
    const auto ranks =
        train_pipeline(c.ranks, with(model, c.layout), compared_steps(10), c.backend);
    check_parity(alone(model, compared_steps(10)), ranks, c.bound);
  }
}

TEST_CASE("messages travel in the requested type") {
  const auto type = [](const char* field, const char* value) {
    return Changes{fmt::format("distributed.{}={}", field, value)};
  };
  const Changes bf16{"mixed_precision.name=bf16_mixed"};
  const char *message = "pipeline.dtype", *output = "mp_policy.output_dtype";
  const auto sent = [](const PipelineResult& r) {
    int64_t bytes = 0;
    for (const LaunchedParts& l : r.launches)
      if (l.stream.kind == device::StreamKind::pp_send) bytes += l.wire_bytes;
    return bytes;
  };
  for (const auto& [schedule, stages] : {std::pair{"1f1b", 1}, {"interleaved_1f1b", 2}})
    for (const char* overlap : {"true", "false"}) {
      CAPTURE(schedule, overlap);
      const Changes base = with(with(pipeline_layout(schedule, 2, stages), kFsdp2),
                                with(batch(8), {fmt::format("comm_overlap.overlap_p2p_comm={}",
                                                            stages > 1 ? overlap : "false")}));
      const auto run = [&](const Changes& more) { return train_pipeline(2, with(base, more), 5); };
      const auto half = run(bf16), whole = run({});
      // Wider messages carry the same numbers.
      for (const Changes& wider : {type(message, "float32"), type(output, "float32")}) {
        const auto ranks = run(with(bf16, wider));
        for (size_t r = 0; r < ranks.size(); ++r) {
          CHECK((ranks[r].losses == half[r].losses));
          CHECK((ranks[r].weights == half[r].weights));
          CHECK(sent(ranks[r]) == 2 * sent(half[r]));
        }
      }
      const auto rounded = run(type(message, "bfloat16"));
      CHECK(rounded[0].losses != whole[0].losses);
      check_close(whole[0].losses, rounded[0].losses, 2e-2);
      CHECK(2 * sent(rounded[0]) == sent(whole[0]));
    }
}

TEST_CASE("overlap of messages changes when they travel, and no bit of the results") {
  const auto overlap = [](const char* on) {
    return Changes{fmt::format("comm_overlap.overlap_p2p_comm={}", on)};
  };
  for (const char* schedule :
       {"interleaved_1f1b", "zero_bubble", "v_schedule", "looped_bfs", "dualpipev"}) {
    const Changes base = with(with(pipeline_layout(schedule, 2, 2), kMegatron), batch(8));
    const auto on = train_pipeline(4, with(base, overlap("true")), 5),
               off = train_pipeline(4, with(base, overlap("false")), 5),
               single = train_pipeline(4, with(with(base, overlap("false")), kSingle), 5),
               late = train_pipeline(4, with(base, {"ddp.overlap_grad_reduce=false"}), 5);
    for (const auto* other : {&off, &single, &late})
      for (size_t r = 0; r < on.size(); ++r) {
        CAPTURE(schedule, r);
        CHECK(((*other)[r].losses == on[r].losses));
        CHECK(((*other)[r].weights == on[r].weights));
      }
  }
}

namespace {
// Counts the launches of a step that do not wait for a message that this rank has already sent.
int64_t launches_beside_sends(const Changes& changes, int ranks) {
  const Setup setup(changes, ranks);
  std::atomic<int64_t> beside = 0;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, setup.recipe, setup.data, rank.world);
    std::map<Stream*, uint64_t> sent;  // the last item of each stream that sends
    rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo&) {
      if (stream.id().kind == device::StreamKind::pp_send) sent[&stream] = stream.enqueued();
      if (stream.id() != device::StreamKind::compute) return;
      for (const auto& [sender, items] : sent) beside += !stream.comes_after(*sender, items);
    });
    t.step();
    rank.device.set_launch_check({});
  });
  return beside;
}
}  // namespace

TEST_CASE("messages one by one train as a single rank does, over every backend") {
  const Changes off{"comm_overlap.overlap_p2p_comm=false"};
  struct Case {
    const char* schedule;
    int pp, stages;
    const char* backend;
  };
  for (const Case& c : std::vector<Case>{{"1f1b", 4, 1, "thread"},
                                         {"interleaved_1f1b", 3, 2, "gloo"},
                                         {"interleaved_1f1b", 4, 2, "shared_memory"},
                                         {"looped_bfs", 2, 2, "gloo"},
                                         {"dualpipev", 2, 2, "shared_memory"}}) {
    CAPTURE(c.schedule, c.pp, c.backend);
    const Changes model = batch(2 * c.pp);
    Changes single = with(pipeline_layout(c.schedule, c.pp, c.stages), kSingle);
    if (c.stages > 1) single = with(single, off);
    check_parity(alone(model, 5), train_pipeline(c.pp, with(model, single), 5, c.backend));
  }
}

namespace {
// Counts a step's messages that do not wait for the message before, if no computation is between
// the two.
int64_t messages_together(const Changes& changes, int ranks) {
  const Setup setup(changes, ranks);
  std::atomic<int64_t> together = 0;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, setup.recipe, setup.data, rank.world);
    const Stream* last = nullptr;  // the stream of the message before
    uint64_t items = 0;
    rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
      if (stream.id() == device::StreamKind::compute) last = nullptr;
      const std::string name = info.name;
      if (stream.id().peer < 0 || (name != "send" && name != "receive")) return;
      together += last && last != &stream && !stream.comes_after(*last, items);
      last = &stream, items = stream.enqueued();
    });
    t.step();
    rank.device.set_launch_check({});
  });
  return together;
}
}  // namespace

TEST_CASE("messages go together between two computations, or one by one") {
  for (const Changes& layout :
       {pipeline_layout("1f1b", 3),
        with(pipeline_layout("interleaved_1f1b", 2, 2), {"comm_overlap.overlap_p2p_comm=false"})}) {
    const int ranks = layout[0].back() - '0';
    CHECK(messages_together(with(batch(6), layout), ranks) > 0);
    CHECK(messages_together(with(with(batch(6), layout), kSingle), ranks) == 0);
  }
}

TEST_CASE("without overlap nothing is computed beside a message") {
  const Changes off{"comm_overlap.overlap_p2p_comm=false"};
  for (const auto& layout : std::vector<Changes>{
           pipeline_layout("1f1b", 2), pipeline_layout("zero_bubble", 2),
           with(pipeline_layout("interleaved_1f1b", 4, 2), off),
           with(pipeline_layout("looped_bfs", 2, 2), off),
           with(pipeline_layout("v_schedule", 2, 2), off),
           with(pipeline_layout("1f1b", 2), kSingle),
           with(pipeline_layout("1f1b", 2), {"comm_overlap.defer_embedding_wgrad_compute=true"})}) {
    CAPTURE(layout);
    const int ranks = layout[0].back() - '0';
    CHECK(launches_beside_sends(with(batch(8), layout), ranks) == 0);
  }
  CHECK(launches_beside_sends(with(batch(8), pipeline_layout("interleaved_1f1b", 2, 2)), 2) > 0);
}

TEST_CASE("channels are connected before a schedule runs, by all ranks in the same order") {
  // Stage s is on rank s % 3: forwards go round, and gradients the other way.
  using enum device::StreamKind;
  const std::vector<std::vector<device::StreamId>> expected{
      {{pp_send, 1}, {pp_send, 2}, {pp_recv, 1}, {pp_recv, 2}},
      {{pp_recv, 0}, {pp_send, 0}, {pp_send, 2}, {pp_recv, 2}},
      {{pp_recv, 0}, {pp_recv, 1}, {pp_send, 0}, {pp_send, 1}}};
  const Setup setup(with(pipeline_layout("interleaved_1f1b", 3, 2), batch(6)), 3);
  std::vector<std::vector<device::StreamId>> connected(3);
  run_ranks(3, "thread", [&](TestRank& rank) {
    auto& own = connected[size_t(rank.rank())];
    rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
      if (stream.id().peer >= 0 && std::string_view(info.name) != "upload")
        own.push_back(stream.id());
    });
    const train::Trainer t = make_trainer(rank.device, setup.recipe, setup.data, rank.world);
    rank.device.set_launch_check({});
    rank.device.synchronize();
  });
  CHECK((connected == expected));
}

TEST_CASE("messages larger than the buffer between two ranks do not block the ranks") {
  // 192 rows of 768: 576 KiB. Shared memory holds 512 KiB of a message that its receiver has not
  // taken.
  const Changes base{"model.num_layers=4", "model.hidden_size=768", "train.global_batch_size=32",
                     "train.micro_batch_size=8"};
  const auto one = pipeline_alone(base, 1).losses;
  for (const auto& layout : std::vector<Changes>{
           pipeline_layout("1f1b", 2), pipeline_layout("interleaved_1f1b", 2, 2),
           with(pipeline_layout("interleaved_1f1b", 2, 2), {"comm_overlap.overlap_p2p_comm=false"}),
           with(pipeline_layout("interleaved_1f1b", 2, 2), kGradientsFirst),
           with(pipeline_layout("zero_bubble", 2), {}),
           with(pipeline_layout("v_schedule", 2, 2), {"comm_overlap.overlap_p2p_comm=false"})}) {
    CAPTURE(layout);
    check_close(one, train_pipeline(2, with(base, layout), 1)[0].losses, 1e-5);
  }
}

TEST_CASE("a schedule from a file is run as it is written") {
  const TemporaryFolder root;
  const fs::path path = root.path / "schedule.csv";
  // Two ranks in a V, with the weight gradients of the first micro-batch at the end.
  std::ofstream(path) << "0F0,0F1,3F0,3I0,3F1,3B1,0I0,0B1,3W0,0W0\n"
                      << "1F0,2F0,1F1,2F1,2I0,1I0,2B1,1B1,2W0,1W0\n";
  const auto ranks = train_pipeline(
      2,
      {"distributed.pp_size=2", "distributed.vpp_size=2",
       "distributed.pipeline.pp_schedule=v_schedule",
       "distributed.pipeline.pp_schedule_csv=" + path.string(), "train.global_batch_size=2"},
      compared_steps(20));
  check_parity(alone(batch(2)), ranks);
  std::string computed;
  for (const std::string& action : ranks[0].executed)
    if (action.find('_') == std::string::npos) computed += action + ",";
  CHECK(computed == "0F0,0F1,3F0,3I0,3F1,3B1,0I0,0B1,3W0,0W0,");
}

TEST_CASE("micro-batches of a pipeline's own size, and gradients that are scaled again") {
  const Changes base =
      with(pipeline_layout("1f1b", 2), {"train.global_batch_size=8", "train.micro_batch_size=4"});
  const auto parts = train_pipeline(2, with(base, {"distributed.pipeline.pp_microbatch_size=2"}),
                                    compared_steps(10));
  check_close(alone(batch(8), compared_steps(10)).losses, parts[0].losses, 1e-5);
  CHECK(parts[0].listed.size() == 4 * (2 + 2));  // and as many messages as computations
  const auto scaled =
      train_pipeline(2,
                     with(base, {"distributed.pipeline.pp_microbatch_size=2",
                                 "distributed.pipeline.scale_grads_in_schedule=true"}),
                     1);
  CHECK(scaled[0].norms[0] == Approx(parts[0].norms[0] / 4).epsilon(1e-6));
}

TEST_CASE("a step flushes the pipeline once for each local batch of AutoModel's name") {
  const Changes local{"step_scheduler.local_batch_size=4",
                      "distributed.pipeline.pp_microbatch_size=2"};
  for (const auto& [layout, ranks, all] :
       {std::tuple{pipeline_layout("1f1b", 2), 2, 8},
        {with(pipeline_layout("interleaved_1f1b", 2, 2), kMegatron), 4, 24},
        {with(pipeline_layout("zero_bubble", 2), kFsdp2), 4, 16},
        {with(pipeline_layout("1f1b", 2), kAtOnce), 4, 16},
        {with(with(pipeline_layout("interleaved_1f1b", 2, 2), kGradientsFirst), kMegatron), 2,
         12}}) {
    CAPTURE(layout, ranks);
    const int flushes = all / 4 / (ranks / 2);
    const auto flushed =
        train_pipeline(ranks, with(with(batch(all), layout), local), compared_steps(10));
    check_parity(alone(batch(all), compared_steps(10)), flushed);
    // Two micro-batches fill each flush, and the data-parallel ranks reduce once.
    CHECK(std::ranges::count(flushed[0].executed, "0F1") == flushes);
    CHECK(std::ranges::count(flushed[0].executed, "0F2") == 0);
  }
  const Changes base = with(with(batch(8), pipeline_layout("1f1b", 2)), local);
  const auto plain = train_pipeline(2, base, 1),
             scaled = train_pipeline(
                 2, with(base, {"distributed.pipeline.scale_grads_in_schedule=true"}), 1);
  CHECK(scaled[0].norms[0] == Approx(plain[0].norms[0] / 2).epsilon(1e-6));
}

TEST_CASE("flushes of a step add nothing to the memory of activations and messages") {
  const auto most = [](const Changes& layout, int ranks, int flushes) {
    const Changes local{"step_scheduler.local_batch_size=4",
                        "distributed.pipeline.pp_microbatch_size=2"};
    int64_t result = 0;
    for (const auto& r : train_pipeline(ranks, with(with(batch(4 * flushes), layout), local), 1))
      result = std::max(result, r.peak_activations);
    return result;
  };
  for (const Changes& layout :
       {pipeline_layout("1f1b", 2), pipeline_layout("interleaved_1f1b", 2, 2)}) {
    CAPTURE(layout);
    // The host enqueues at most four flushes ahead.
    CHECK(double(most(layout, 2, 16)) <= 1.05 * double(most(layout, 2, 4)));
  }
}

TEST_CASE("a checkpoint of any pipeline resumes under any other") {
  const TemporaryFolder root;
  struct Case {
    int ranks;
    Changes changes;
  };
  const Changes model = with(kGpt2, batch(8));
  const std::vector<Case> layouts{
      {1, {}},
      {2, pipeline_layout("1f1b", 2)},
      {4, with(pipeline_layout("v_schedule", 2, 2), kFsdp2)},
      {4, pipeline_layout("interleaved_1f1b", 4, 2)},
      {4, with(pipeline_layout("zero_bubble", 2), {"distributed.tp_size=2"})}};
  const auto run = [&](const Case& c, const fs::path* from, const fs::path& to) {
    const Setup s(with(model, c.changes), c.ranks);
    std::vector<double> losses;
    run_ranks(c.ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, s.recipe, s.data, rank.world);
      if (from) run::resume_run(t, *from);
      std::vector<double> own;
      for (int i = 0; i < 3; ++i) own.push_back(t.step().loss);
      if (!to.empty()) run::save_run(t, to);
      if (rank.rank() == 0) losses = own;
    });
    return losses;
  };
  const auto straight = alone(model, 6).losses;
  const std::vector<double> tail(straight.begin() + 3, straight.end());
  for (size_t i = 0; i < layouts.size(); ++i) {
    const fs::path folder = root.path / std::to_string(i);
    run(layouts[i], nullptr, folder);
    const auto saved = storage::find_latest(folder);
    REQUIRE(saved);
    for (const size_t j : {i, (i + 1) % layouts.size(), (i + 3) % layouts.size()}) {
      CAPTURE(i, j);
      const auto again = run(layouts[j], &saved->path, {});
      check_close(tail, again, 1e-5);
      if (i != j || i == 0) continue;
      // Under the same layout, losses are equal bit by bit.
      const auto whole = train_pipeline(layouts[i].ranks, with(model, layouts[i].changes), 6);
      CHECK((again == std::vector<double>(whole[0].losses.begin() + 3, whole[0].losses.end())));
    }
  }
}

TEST_CASE("the stage that first has a value that is not finite reports its place") {
  const bool parameter = GENERATE(true, false);
  const char* schedule = GENERATE("1f1b", "zero_bubble");
  CAPTURE(parameter, schedule);
  const Setup s(with(pipeline_layout(schedule, 2), batch(8)), 4);
  const std::string name = "layers.5.attention.qkv.weight";  // a parameter of the second stage
  std::vector<std::string> messages(4);
  run_ranks(4, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, s.recipe, s.data, rank.world);
    t.change_weights([&] {
      model::Parameter* p = t.params().find(name);
      if (!p) return;
      std::vector<float> values(size_t(p->full_shape().count()), parameter ? 0.0f : 3e38f);
      if (parameter) values[7] = std::nanf("");
      t.params().set_master(t.compute(), *p, values);
    });
    try {
      t.step();
    } catch (const RunError& e) {
      messages[size_t(rank.rank())] = "run: " + e.message();
    } catch (const CommError& e) {
      messages[size_t(rank.rank())] = "comm: " + e.message();
    }
  });
  CAPTURE(messages[0], messages[1], messages[2], messages[3]);
  for (const int rank : {0, 1}) CHECK(messages[size_t(rank)].find("comm: step 1") == 0);
  bool found = false;  // sharded: one of the stage's two ranks has the element
  for (const int rank : {2, 3})
    found = found || (messages[size_t(rank)].find("run: step 1") == 0 &&
                      messages[size_t(rank)].find(parameter ? name : "1F0 > layers.5.attention") !=
                          std::string::npos);
  CHECK(found);
}

}  // namespace parity_pipeline_test
