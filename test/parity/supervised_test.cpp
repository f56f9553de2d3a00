// Prompts and answers under every layout: a label that counts weighs the same wherever it is, and
// tokens without such a label give no gradient. Runs under the stream sanitizer.
#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "data/build/build.h"
#include "data/dataset/blend.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/packed_dataset.h"
#include "data/dataset/rows_dataset.h"
#include "interchange/export.h"
#include "interchange/model_source.h"
#include "plan/options/recipe_options.h"
#include "run/run.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/comm_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"
#include "train/data_setup.h"
#include "train_pieces.h"

namespace parity_supervised_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

namespace {

// Prompts have ids below kAnswers, answers ids below kRemarks. The other ids are remarks, which
// follow an answer and are not labels: the model learns neither from them nor from later tokens.
constexpr int32_t kAnswers = 30, kRemarks = 50;

// Writes 64 documents of a prompt, an answer of 1 to 10 tokens and a remark, as long as a sequence
// or of different lengths. Every fourth answer has one token, and no token of every seventh counts.
// `other` changes the tokens of remarks.
std::shared_ptr<const data::IndexedDataset> pairs(bool as_long_as_a_sequence, int32_t other = 0) {
  const TemporaryFolder folder;
  data::IndexedDatasetWriter writer(folder / "pairs", data::TokenType::u16, true);
  for (int64_t d = 0; d < 64; ++d) {
    auto draw = [d, n = uint64_t(0)](uint64_t below) mutable {
      return int64_t(uniform_below(17, uint64_t(d) * 64 + n++, below));
    };
    const int64_t prompt = 2 + draw(6), answer = d % 4 == 0 ? 1 : 1 + draw(10);
    const int64_t remark = as_long_as_a_sequence ? kSeq - prompt - answer : 1 + draw(4);
    std::vector<int32_t> ids;
    std::vector<uint8_t> labels;
    for (int64_t i = 0; i < prompt; ++i) ids.push_back(int32_t(draw(kAnswers)));
    for (int64_t i = 0; i < answer; ++i)
      ids.push_back(kAnswers + (ids.back() * 3 + 7) % (kRemarks - kAnswers));
    for (int64_t i = 0; i < remark; ++i)
      ids.push_back(kRemarks +
                    int32_t(draw(kVocab - kRemarks) + other) % (int32_t(kVocab) - kRemarks));
    for (int64_t i = 0; i < int64_t(ids.size()); ++i)
      labels.push_back(i >= prompt && i < prompt + answer && d % 7 != 6);
    writer.add_tokens(ids, labels);
    writer.end_document();
  }
  writer.finish();
  return std::make_shared<data::IndexedDataset>(folder / "pairs");
}

// How documents become samples, with the settings for that.
struct Kind {
  const char* name;
  std::shared_ptr<const data::Dataset> data;
  Changes changes;
};

Kind plain(int32_t other = 0) {
  return {"plain",
          std::make_shared<data::GptDataset>(
              pairs(true, other), data::GptDatasetOptions{.seq_length = kSeq, .seed = 3}),
          {}};
}
Kind packed(int32_t other = 0) {
  return {"packed",
          std::make_shared<data::PackedDataset>(
              pairs(false, other), data::PackedDatasetOptions{.size = kSeq, .seed = 3}),
          {fmt::format("packed_sequence.packed_sequence_size={}", kSeq)}};
}
Kind rows(int32_t other = 0) {
  return {"rows",
          std::make_shared<data::RowsDataset>(pairs(false, other),
                                              data::RowsDatasetOptions{.longest = kSeq, .seed = 3}),
          {"dataset.form=rows"}};
}
// The same samples, each padded to the length of a sequence.
Kind padded_rows() {
  return {"padded rows",
          std::make_shared<data::PackedDataset>(
              pairs(false), data::PackedDatasetOptions{.size = kSeq, .seed = 3, .alone = true}),
          {}};
}
Kind blended() {
  const std::vector<std::shared_ptr<const data::Dataset>> parts{plain().data,
                                                                std::make_shared<CountingData>()};
  return {"blended", std::make_shared<data::BlendDataset>(parts, std::vector{0.7, 0.3}), {}};
}

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
};
const std::vector<Layout> kLayouts{
    {"dp 4", 4, {"distributed.strategy=megatron_ddp"}},
    {"dp 2, averages", 2, {"distributed.strategy=ddp", "ddp.average_in_collective=true"}},
    {"fsdp2 4", 4, {"distributed.strategy=fsdp2"}},
    {"tp 2", 2, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
    {"tp 2 with sequence parallelism, dp 2",
     4,
     {"distributed.strategy=megatron_ddp", "distributed.tp_size=2",
      "distributed.sequence_parallel=true"}},
    {"pp 2",
     2,
     {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}"}},
    {"pp 2, dp 2",
     4,
     {"distributed.strategy=fsdp2", "distributed.pp_size=2", "distributed.pipeline={}"}},
    {"cp 2", 2, {"distributed.strategy=megatron_ddp", "distributed.cp_size=2"}},
    {"cp 2, dp 2", 4, {"distributed.strategy=fsdp2", "distributed.cp_size=2"}},
    {"cp 2, tp 2",
     4,
     {"distributed.strategy=megatron_ddp", "distributed.cp_size=2", "distributed.tp_size=2"}}};

const Changes kBatch{"train.global_batch_size=8", "train.micro_batch_size=1"};

struct Result {
  std::vector<double> losses, norms;
  double evaluation = 0;
  Pieces gradients;  // in step 1, clipped, times 1 - beta
};

Result train_all(const Kind& kind, const Changes& layout, Device& device, comm::World world,
                 int64_t steps) {
  const Recipe r = tiny(with(with(kBatch, kind.changes), layout), world.size());
  train::Trainer t = make_trainer(device, r, kind.data, std::move(world));
  Result result;
  for (int64_t i = 0; i < steps; ++i) {
    const train::StepStats s = t.step();
    result.losses.push_back(s.loss);
    result.norms.push_back(s.grad_norm);
    if (i == 0)
      result.gradients = pieces(t, [&](model::ParamUnit& unit) {
        return t.data_parallel().gather_unit(
            unit, t.optimizer().state()[0].values.own(t.compute(), unit));
      });
  }
  // 13 samples leave the last batch partly filled.
  result.evaluation = t.evaluate(data::ValidationLoader(kind.data, 13,
                                                        {.micro_batch = r.train.micro_batch_size,
                                                         .dp_rank = t.data_parallel().rank(),
                                                         .dp_size = t.data_parallel().size()}));
  return result;
}

Result train_alone(const Kind& kind, int64_t steps) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return train_all(kind, {}, *device, comm::World::alone(), steps);
}

std::vector<Result> train_ranks(const Kind& kind, const Layout& layout, int64_t steps) {
  std::vector<Result> results(static_cast<size_t>(layout.ranks));
  run_ranks(layout.ranks, "thread", [&](TestRank& rank) {
    results[size_t(rank.rank())] = train_all(kind, layout.changes, rank.device, rank.world, steps);
  });
  return results;
}

int64_t labels_of(const data::Dataset& data, int64_t index) {
  data::Sample sample;
  data.sample(index, sample);
  return int64_t(sample.label.size()) - std::ranges::count(sample.label, -1);
}

// A data set of one sample: sample `index` of another data set.
class OneSample : public data::Dataset {
 public:
  OneSample(std::shared_ptr<const data::Dataset> from, int64_t index)
      : from_(std::move(from)), index_(index) {}
  int64_t seq_length() const override { return from_->seq_length(); }
  int64_t size() const override { return 1; }
  bool packed() const override { return from_->packed(); }
  bool fixed_length() const override { return from_->fixed_length(); }
  void sample(int64_t, data::Sample& out) const override { from_->sample(index_, out); }

 private:
  std::shared_ptr<const data::Dataset> from_;
  int64_t index_;
};

}  // namespace

TEST_CASE("labels that count are averaged over the global batch, under every layout") {
  for (const Kind& kind : {plain(), packed(), rows(), blended()}) {
    std::set<int64_t> counts;
    for (int64_t i = 0; i < 8; ++i) counts.insert(labels_of(*kind.data, i));
    REQUIRE(counts.size() >= 3);  // samples of the batch differ in their number of labels
    REQUIRE(*counts.begin() > 0);
    const Result one = train_alone(kind, 4);
    for (const Layout& layout : kLayouts) {
      CAPTURE(kind.name, layout.name);
      const auto ranks = train_ranks(kind, layout, 4);
      check_close(one.losses, ranks[0].losses, 1e-5);
      check_close(one.norms, ranks[0].norms, 1e-4);
      CHECK(ranks[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
      for (const Result& other : ranks) CHECK((other.losses == ranks[0].losses));
      check_tensors(one, ranks, &Result::gradients, 1e-5);
    }
  }
}

TEST_CASE("rows without padding train as padded rows do, whatever the micro-batch") {
  const Result padded = train_alone(padded_rows(), 4);
  const Kind kind = rows();
  REQUIRE(kind.data->size() == padded_rows().data->size());
  for (size_t i = 0; i < kLayouts.size(); ++i) {
    Layout layout = kLayouts[i];
    const int64_t most = 8 / std::max<int64_t>(1, layout.ranks);
    for (const int64_t micro : {int64_t{1}, most}) {
      Layout sized = layout;
      sized.changes.push_back(fmt::format("train.micro_batch_size={}", micro));
      CAPTURE(layout.name, micro);
      const auto ranks = train_ranks(kind, sized, 4);
      check_close(padded.losses, ranks[0].losses, 1e-5);
      check_close(padded.norms, ranks[0].norms, 1e-4);
      CHECK(ranks[0].evaluation == Approx(padded.evaluation).epsilon(1e-5));
      check_tensors(padded, ranks, &Result::gradients, 1e-5);
    }
  }
}

TEST_CASE("several packs of prompts and answers at once train as one at a time does") {
  const Kind kind = packed();
  const Result one = train_alone(kind, 4);
  for (size_t i = 0; i < kLayouts.size(); ++i) {
    Layout layout = kLayouts[i];
    const int dp_4 = layout.name == std::string("dp 4") || layout.name == std::string("fsdp2 4");
    const int packs = dp_4 || i % 2 == 0 ? 2 : 4;
    layout.changes.push_back(fmt::format("train.micro_batch_size={}", packs));
    CAPTURE(layout.name, packs);
    const auto ranks = train_ranks(kind, layout, 4);
    check_close(one.losses, ranks[0].losses, 1e-5);
    check_close(one.norms, ranks[0].norms, 1e-4);
    CHECK(ranks[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
    check_tensors(one, ranks, &Result::gradients, 1e-5);
  }
}

TEST_CASE("the loss of a step is the mean over the labels of its batch, not over samples") {
  for (const Kind& kind : {plain(), packed(), rows()}) {
    CAPTURE(kind.name);
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t =
        make_trainer(*device, tiny(with(kBatch, kind.changes)), kind.data, comm::World::alone());
    double sum = 0, mean_of_means = 0;
    int64_t labels = 0;
    for (int64_t i = 0; i < 8; ++i) {
      const double loss = t.evaluate(
          data::ValidationLoader(std::make_shared<OneSample>(kind.data, i), 1, {.micro_batch = 1}));
      const int64_t n = labels_of(*kind.data, i);
      sum += loss * double(n), labels += n, mean_of_means += loss / 8;
    }
    const double mean = sum / double(labels);
    CHECK(t.step().loss == Approx(mean).epsilon(1e-6));
    CHECK(std::abs(mean_of_means / mean - 1) > 1e-4);  // the two are clearly different
  }
}

TEST_CASE("tokens that no label follows give exactly no gradient, under every layout") {
  std::vector<Layout> layouts = kLayouts;
  layouts.push_back({"alone", 1, {}});
  for (const auto& [kind, changed] :
       {std::pair{plain(), plain(5)}, std::pair{packed(), packed(5)}, std::pair{rows(), rows(5)}}) {
    for (const Layout& layout : layouts) {
      CAPTURE(kind.name, layout.name);
      const auto ranks = train_ranks(kind, layout, 1), others = train_ranks(changed, layout, 1);
      const std::vector<float> rows = assemble(ranks, &Result::gradients, "embedding.weight");
      const auto H = int64_t(rows.size()) / kVocab;
      const auto nonzero = [&](int64_t from, int64_t to) {
        return (to - from) * H - std::count(rows.begin() + from * H, rows.begin() + to * H, 0.0f);
      };
      CHECK(nonzero(0, kRemarks) > 0);
      CHECK(nonzero(kRemarks, kVocab) == 0);
      // Other tokens in their place change no bit of the results.
      for (size_t r = 0; r < ranks.size(); ++r) {
        CHECK(ranks[r].losses == others[r].losses);
        CHECK(ranks[r].norms == others[r].norms);
        CHECK((ranks[r].gradients == others[r].gradients));
      }
    }
  }
}

namespace {

// A first run on lines of sums, and pairs of the two halves of such lines.
struct SumsLab : TemporaryFolder {
  SumsLab() {
    std::string text, lines;
    for (uint64_t i = 0; i < 300; ++i) {
      const auto a = uniform_below(1, i, 10), b = uniform_below(2, i, 10);
      text += fmt::format("{} and {} are {}.\n{}", a, b, a + b, i % 10 == 9 ? "\n" : "");
      lines +=
          fmt::format("{{\"prompt\": \"{} and {}\", \"answer\": \" are {}.\"}}\n", a, b, a + b);
    }
    write_file_atomic(path / "text.txt", text);
    write_file_atomic(path / "pairs.jsonl", lines);
    const auto tokenizer = data::make_byte_tokenizer();
    build_dataset({.inputs = {path / "text.txt"},
                   .output = path / "text",
                   .split = data::DocumentSplit::blank_line},
                  *tokenizer);
    build_dataset({.inputs = {path / "pairs.jsonl"},
                   .output = path / "pairs",
                   .prompt_field = "prompt",
                   .answer_field = "answer",
                   .validation_fraction = 0.1},
                  *tokenizer);
  }

  RunPlan plan(const std::string& recipe, const Changes& changes, int64_t ranks) const {
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe(
        interchange::model_source(), MTRAIN_SOURCE_DIR "/recipes/" + recipe + ".yaml",
        with({"train.threads=1", "lr_scheduler.warmup_steps=2", "dataset.seq_length=64",
              "train.run_dir=" + (path / recipe).string()},
             changes),
        diagnostics, ranks);
    INFO(diagnostics.text(recipe::Severity::error));
    REQUIRE_FALSE(diagnostics.has_errors());
    return plan::make_plan(r, ranks, train::vocabulary(plan::tokenizer_options(r)));
  }

  // Trains the quickstart's recipe with a small model, and returns the folder of its export.
  std::string first_run() const {
    const RunPlan p =
        plan("quickstart",
             {"model.num_layers=2", "model.hidden_size=32", "model.num_attention_heads=4",
              "model.num_query_groups=2", "train.steps=40", "optimizer.lr=1e-2",
              "dataset.train=" + (path / "text").string(), "dataset.validation=[]",
              "validation.every_steps=0", "checkpoint.every_steps=0"},
             1);
    run::run_training(p, {.job = {.id = "first"}});
    interchange::export_hf(storage::find_latest(path / "quickstart/checkpoints")->path, path / "hf",
                           {});
    return (path / "hf").string();
  }
};

struct FineTuned {
  std::vector<double> losses;
  double before = 0, after = 0;  // the losses of held-out answers
};

std::vector<FineTuned> fine_tune(const SumsLab& lab, const std::string& from, int ranks,
                                 const Changes& layout) {
  const RunPlan p =
      lab.plan("sft",
               with({"model.from=" + from, "train.steps=20",
                     "packed_sequence.packed_sequence_size=64", "train.global_batch_size=8",
                     "optimizer.lr=5e-3", "dataset.train=" + (lab / "pairs_train").string(),
                     "dataset.validation=" + (lab / "pairs_valid").string()},
                    layout),
               ranks);
  std::vector<FineTuned> results(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = train::build_trainer(
        rank.device, p, train::open_training_data(p.dataset, {p.model.vocab}), rank.world);
    const data::ValidationLoader held_out(train::open_validation_data(p.dataset, {p.model.vocab}),
                                          0,
                                          {.micro_batch = 1,
                                           .dp_rank = t.data_parallel().rank(),
                                           .dp_size = t.data_parallel().size()});
    run::start_from_folder(t);
    FineTuned& own = results[size_t(rank.rank())];
    own.before = t.evaluate(held_out);
    for (int64_t i = 0; i < p.train.steps; ++i) own.losses.push_back(t.step().loss);
    own.after = t.evaluate(held_out);
  });
  return results;
}

}  // namespace

TEST_CASE(
    "the recipe of fine-tuning learns answers from an exported quickstart, on 1 and 4 ranks") {
  const SumsLab lab;
  const std::string from = lab.first_run();
  const FineTuned one = fine_tune(lab, from, 1, {})[0];
  CHECK(one.before < std::log(257) / 2);  // the first run's weights know the text already
  CHECK(one.after < 0.8 * one.before);
  CHECK(one.losses.back() < 0.8 * one.losses.front());
  for (const Changes& layout :
       std::vector<Changes>{{}, {"distributed.strategy=fsdp2", "distributed.tp_size=2"}}) {
    CAPTURE(layout);
    for (const FineTuned& rank : fine_tune(lab, from, 4, layout)) {
      check_close(one.losses, rank.losses, 1e-5);
      CHECK(rank.before == Approx(one.before).epsilon(1e-5));
      CHECK(rank.after == Approx(one.after).epsilon(1e-5));
    }
  }
}

}  // namespace parity_supervised_test
