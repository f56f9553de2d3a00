// Compares multi-token prediction with a single rank: where the letter m of a layout places it, in
// half precision, with Muon, dropout and chunks of logits, and resumed under another pipeline.
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "token_prediction_testing.h"

namespace parity_token_prediction_places_test {

using namespace token_prediction_testing;

namespace {

const Changes kTwoDepths{"model.mtp_num_layers=2"},
    kRepeated = with(with(kLatent, kFewExperts),
                     {"model.mtp_num_layers=2", "model.mtp_use_repeated_layer=true"});

// Layouts of four layers and two depths over four stages.
struct Place {
  const char* name;
  const char* layout;
};
const std::vector<Place> kPlaces{{"with layers and the output layer", "Et|t|t|tmmL"},
                                 {"with the output layer", "Et|tt|t|mmL"},
                                 {"with layers, before the output layer", "Et|t|ttmm|L"},
                                 {"alone, before the output layer", "Et|t*3|m*2|L"}};

struct Pipeline {
  const char* schedule;
  int ranks, pp;
  Changes more = {};
};
const std::vector<Pipeline> kPipelines{
    {"1f1b", 4, 4},
    {"gpipe", 4, 4},
    {"zero_bubble", 4, 4},
    {"interleaved_1f1b", 2, 2},
    {"looped_bfs", 2, 2},
    {"v_schedule", 2, 2},
    {"dualpipev", 2, 2},
    {"interleaved_1f1b", 4, 2, kFsdp2},
    {"1f1b", 8, 4, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {"1f1b", 8, 4, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"1f1b", 8, 4, {"distributed.cp_size=2"}},
    {"zero_bubble", 4, 4, {"recompute=full"}}};
const std::vector<Pipeline> kExpertPipelines{
    {"1f1b", 4, 4},
    {"interleaved_1f1b", 4, 2, {"distributed.ep_size=2"}},
    {"zero_bubble", 4, 2, {"distributed.ep_size=2", "distributed.strategy=fsdp2"}},
    {"dualpipev",
     4,
     2,
     {"distributed.ep_size=2", "train.micro_batch_size=1",
      "comm_overlap.overlap_moe_expert_parallel_comm=true"}}};

Changes placed(const Place& place, const Pipeline& p) {
  return with({fmt::format("distributed.pp_size={}", p.pp),
               fmt::format("distributed.pipeline.layout='{}'", place.layout),
               fmt::format("distributed.pipeline.pp_schedule={}", p.schedule)},
              p.more);
}

void expect_same_in_all_places(const Changes& model, const std::vector<Pipeline>& pipelines) {
  const Losses one = train_layout(1, model, compared_steps(20))[0];
  for (const Place& place : kPlaces)
    for (const Pipeline& p : pipelines) {
      CAPTURE(place.name, p.schedule, p.more);
      expect_same(one, train_layout(p.ranks, with(model, placed(place, p)), compared_steps(20)));
    }
}

}  // namespace

TEST_CASE("further depths train alike wherever m places them, under every schedule") {
  expect_same_in_all_places(kTwoDepths, kPipelines);
}

TEST_CASE("stages without layers stand before and after further depths") {
  const Changes one_layer = with(kTwoDepths, {"model.num_layers=1"});
  const Losses one = train_layout(1, one_layer, 8)[0];
  for (const Place& place : std::vector<Place>{{"four kinds of stages", "E|t|mm|L"},
                                               {"an empty last stage but one", "E|t||mmL"}})
    for (const char* schedule : {"1f1b", "zero_bubble"}) {
      CAPTURE(place.name, schedule);
      expect_same(one, train_layout(4, with(one_layer, placed(place, {schedule, 4, 4})), 8));
    }
}

TEST_CASE("a repeated layer with experts trains alike wherever m places it") {
  expect_same_in_all_places(kRepeated, kExpertPipelines);
}

TEST_CASE(
    "further depths train alike under layouts with Muon, with dropout, and in chunks of logits") {
  struct Row {
    const char* name;
    Changes changes;
  };
  for (const Row& row :
       std::vector<Row>{{"muon", {"optimizer.name=muon"}},
                        {"dropout", {"model.hidden_dropout=0.1", "model.attention_dropout=0"}},
                        {"chunks of logits", {"train.logits_gb=1e-5"}}}) {
    const Changes model = with(kTwoDepths, row.changes);
    const Losses one = train_layout(1, model, 8)[0];
    for (const Pipeline& p : std::vector<Pipeline>{{"1f1b", 4, 4}, {"interleaved_1f1b", 4, 2}})
      for (const size_t place : {0, 3}) {
        CAPTURE(row.name, p.schedule, kPlaces[place].name);
        expect_same(one, train_layout(p.ranks, with(model, placed(kPlaces[place], p)), 8));
      }
    for (const Changes& layout :
         {Changes{"distributed.tp_size=2"}, with({"distributed.strategy=fsdp2"}, {})}) {
      CAPTURE(row.name, layout);
      expect_same(one, train_layout(2, with(model, layout), 8));
    }
  }
}

TEST_CASE("chunks of logits change neither the losses of further depths nor the training") {
  const Losses whole = train_layout(1, kTwoDepths, 8)[0],
               chunks = train_layout(1, with(kTwoDepths, {"train.logits_gb=1e-5"}), 8)[0];
  check_close(whole.result.losses, chunks.result.losses, 1e-6);
  check_close(whole.further, chunks.further, 1e-6);
}

TEST_CASE("further depths follow fp32 in half precision, under layouts too") {
  const Losses fp32 = train_layout(1, kTwoDepths, compared_steps(20))[0];
  for (const char* precision : {"fp16_mixed", "bf16_mixed"}) {
    const Changes model = with(kTwoDepths, {fmt::format("mixed_precision.name={}", precision)});
    const Losses one = train_layout(1, model, compared_steps(20))[0];
    CAPTURE(precision);
    // The numerics contract: losses to 2e-2 in half precision.
    check_close(fp32.result.losses, one.result.losses, 2e-2);
    check_close(fp32.further, one.further, 2e-2);
    for (const size_t place : {0, 3}) {
      CAPTURE(kPlaces[place].name);
      expect_same(
          one,
          train_layout(4, with(model, placed(kPlaces[place], {"1f1b", 4, 4})), compared_steps(20)),
          2e-2);
    }
  }
}

TEST_CASE("a run with further depths resumes where m stands elsewhere") {
  const TemporaryFolder root;
  const auto losses_of = [](int ranks, const Changes& layout, int64_t steps,
                            const std::filesystem::path& from, const std::filesystem::path& to) {
    const Recipe r = tiny(with(with(kBase, kTwoDepths), layout), ranks);
    std::vector<double> losses;
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      if (!from.empty()) run::resume_run(t, from);
      std::vector<double> own;
      for (int64_t i = 0; i < steps; ++i) {
        const train::StepStats s = t.step();
        own.push_back(s.loss);
        own.insert(own.end(), s.mtp_losses.begin(), s.mtp_losses.end());
      }
      if (!to.empty()) run::save_run(t, to);
      if (rank.rank() == 0) losses = own;
    });
    return losses;
  };
  const auto all = losses_of(1, {}, 6, {}, {});
  const std::vector<double> reference(all.end() - 9, all.end());
  for (size_t i = 0; i < kPlaces.size(); ++i) {
    const auto folder = root.path / std::to_string(i);
    const Changes saving = placed(kPlaces[i], {"1f1b", 4, 4});
    losses_of(4, saving, 3, {}, folder);
    const auto saved = storage::find_latest(folder);
    REQUIRE(saved);
    CAPTURE(kPlaces[i].name);
    check_close(reference, losses_of(1, {}, 3, saved->path, {}), 1e-5);
    const Place& other = kPlaces[(i + 2) % kPlaces.size()];
    for (const Pipeline& p :
         std::vector<Pipeline>{{"interleaved_1f1b", 4, 2, kFsdp2}, {"v_schedule", 2, 2}}) {
      CAPTURE(other.name, p.schedule);
      check_close(reference, losses_of(p.ranks, placed(other, p), 3, saved->path, {}), 1e-5);
    }
  }
}

}  // namespace parity_token_prediction_places_test
