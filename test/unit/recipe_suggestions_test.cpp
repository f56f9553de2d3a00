// Tests that the suggestions of hints lead to valid recipes.
#include <cctype>
#include <filesystem>
#include <fstream>

#include <fmt/core.h>

#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/rules/rules.h"
#include "recipe/load/find_recipe.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace recipe_suggestions_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

// Returns the integers of a text, in their order.
std::vector<int64_t> numbers_of(const std::string& text) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!std::isdigit(static_cast<unsigned char>(text[i]))) continue;
    size_t length = 0;
    numbers.push_back(std::stoll(text.substr(i), &length));
    i += length;
  }
  return numbers;
}

std::string only_hint(const Setting& s) {
  const Diagnostics diagnostics = check(s.world, s.set);
  INFO(s.what << "\n" << listed(diagnostics));
  REQUIRE(count(diagnostics, Severity::error) == 1);
  for (const auto& d : diagnostics.sorted())
    if (d.severity == Severity::error) return d.hint;
  return {};
}

// The setting is refused, and each of the first `count` numbers of the hint passes as the value of
// `field`.
void expect_cured(const Setting& s, const std::string& field, size_t count) {
  const std::string hint = only_hint(s);
  INFO(s.what << ": " << hint);
  const std::vector<int64_t> numbers = numbers_of(hint);
  REQUIRE(numbers.size() >= count);
  for (size_t i = 0; i < count; ++i) {
    Setting cured = s;
    cured.set.push_back(fmt::format("{}={}", field, numbers[i]));
    expect_accepts(cured);
  }
}

Recipe loaded(const Overrides& set) {
  Diagnostics diagnostics;
  const Recipe r =
      plan::load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, diagnostics, 1);
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

std::string messages_about_files(const Overrides& set) {
  Diagnostics diagnostics;
  plan::check_files(loaded(set), diagnostics);
  return diagnostics.text(Severity::error);
}

void write_pair(const std::string& prefix) {
  for (const char* ending : {".bin", ".idx"}) std::ofstream(prefix + ending) << "x";
}

}  // namespace

TEST_CASE("batch sizes that a hint names fit dp, the micro-batch and the schedule together") {
  expect_cured({.what = "dp and micro-batch",
                .world = 3,
                .set = {"train.micro_batch_size=4", "train.global_batch_size=30"}},
               "train.global_batch_size", 2);
  expect_cured({.what = "dp alone", .world = 5, .set = {"train.global_batch_size=32"}},
               "train.global_batch_size", 2);
  expect_cured({.what = "interleaved over dp",
                .world = 8,
                .set = interleaved({"train.micro_batch_size=2", "train.global_batch_size=37"})},
               "train.global_batch_size", 2);
  expect_cured({.what = "fewer than the schedule needs",
                .world = 8,
                .set = {"distributed.pp_size=4", "distributed.pipeline.pp_schedule=dualpipev",
                        "train.micro_batch_size=2", "train.global_batch_size=13"}},
               "train.global_batch_size", 1);
  expect_cured(
      {.what = "local batches of AutoModel",
       .world = 8,
       .set = {"distributed.pp_size=4", "distributed.pipeline.pp_microbatch_size=2",
               "step_scheduler.local_batch_size=8", "step_scheduler.global_batch_size=36"}},
      "train.global_batch_size", 2);
}

TEST_CASE("a number of micro-batches that a hint names comes with its batch") {
  const Setting rounds{
      .what = "rounds", .world = 8, .set = interleaved({"train.global_batch_size=18"})};
  const std::string hint = only_hint(rounds);
  INFO(hint);
  CHECK_THAT(hint, Contains("micro-batches: global_batch_size "));
  const std::vector<int64_t> numbers = numbers_of(hint);
  REQUIRE(numbers.size() == 4);
  for (const int64_t batch : {numbers[2], numbers[3]}) {
    Setting cured = rounds;
    cured.set.push_back(fmt::format("train.global_batch_size={}", batch));
    expect_accepts(cured);
  }
}

TEST_CASE("numbers of heads that a hint names divide the width, and leave rotary pairs") {
  const Overrides base{"model.hidden_size=128", "model.num_query_groups=none"};
  const auto with = [&](const Overrides& more) {
    Overrides all = base;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Setting six{.what = "6 of 128", .set = with({"model.num_attention_heads=6"})};
  CHECK_THAT(only_hint(six), Contains("use 4 or 8 heads"));
  expect_cured(six, "model.num_attention_heads", 2);
  const std::vector<int64_t> numbers = numbers_of(only_hint(six));
  REQUIRE(numbers.size() >= 4);
  for (const int64_t hidden : {numbers[2], numbers[3]}) {
    Setting cured = six;
    cured.set.push_back(fmt::format("model.hidden_size={}", hidden));
    expect_accepts(cured);
  }
  expect_cured(
      {.what = "key-value heads",
       .set = {"model.hidden_size=128", "model.num_attention_heads=6", "model.num_query_groups=2"}},
      "model.num_attention_heads", 2);
  expect_cured({.what = "tensor parallelism",
                .world = 4,
                .set = with({"model.num_attention_heads=12", "distributed.tp_size=4"})},
               "model.num_attention_heads", 1);
  expect_cured({.what = "groups of heads",
                .set = {"model.num_attention_heads=8", "model.num_query_groups=3"}},
               "model.num_query_groups", 2);
}

TEST_CASE("a tp_size that a hint names divides heads, width and world") {
  expect_cured(
      {.what = "3 of 8 heads",
       .world = 12,
       .set = {"distributed.tp_size=3", "model.ffn_hidden_size=768", "train.global_batch_size=48"}},
      "distributed.tp_size", 2);
}

TEST_CASE("another version or family is never suggested for a model") {
  const auto hint = [](const std::string& family) {
    return only_hint({.set = {"model.architecture=" + family}});
  };
  for (const char* family :
       {"deepseek_v4", "deepseek_v1", "deepseek_mla", "qwen4", "gemma4", "llama4", "glm5_moe"}) {
    INFO(family);
    CHECK_THAT(hint(family), !Contains("did you mean") && Contains("llama, gpt2"));
  }
  CHECK_THAT(hint("lama"), Contains("did you mean `llama`"));
  CHECK_THAT(hint("qwen3_meo"), Contains("did you mean `qwen3_moe`"));
  CHECK_THAT(only_hint({.set = {"mixed_precision.name=fp8_mixed"}}), !Contains("did you mean"));

  const std::vector<std::string> folders{MTRAIN_SOURCE_DIR "/recipes"};
  const auto ready = [&](const std::string& name) {
    Diagnostics diagnostics;
    recipe::find_recipe(name, folders, diagnostics);
    return diagnostics.text(Severity::error);
  };
  CHECK_THAT(ready("llama4_8b"), !Contains("did you mean"));
  CHECK_THAT(ready("deepseek_v4"), !Contains("did you mean"));
  CHECK_THAT(ready("llama3_9b"), Contains("did you mean llama3_8b"));
}

TEST_CASE("a run that should begin with weights is led to model.from") {
  CHECK_THAT(only_hint({.set = {"checkpoint.pretrained_checkpoint=/x"}}),
             Contains("write model: {from: FOLDER}"));
  CHECK(only_hint({.set = {"checkpoint.finetune=true"}}) == "leave it out");
}

TEST_CASE("data that are not a prefix of a pair get a hint to one") {
  const TemporaryFolder folder;
  const std::string data = folder / "corpus";
  write_pair(data);
  const std::string text = folder / "texts.jsonl";
  std::ofstream(text) << "{}";
  const auto messages_of = [](const std::string& path) {
    return messages_about_files({"dataset.train=" + path});
  };
  CHECK(messages_of(data).empty());
  CHECK_THAT(messages_of(data + ".bin"), Contains("hint: write " + data + ":"));
  CHECK_THAT(messages_of(data + ".idx"), Contains("hint: write " + data + ":"));
  CHECK_THAT(messages_of(text),
             Contains("is text") && Contains("mtrain data build --input " + text + " --output " +
                                             (folder / "texts").string() + " --tokenizer byte"));
  CHECK_THAT(messages_of(data + "s"), Contains("did you mean " + data + "?"));
  CHECK_THAT(messages_of(folder.path.string()),
             Contains("is a folder") && Contains("write " + data));
  CHECK_THAT(messages_of("no/such"),
             Contains("no file no/such.bin in " + std::filesystem::current_path().string()));
  std::filesystem::remove(data + ".idx");
  CHECK_THAT(messages_of(data), Contains("no file " + data + ".idx"));
}

}  // namespace recipe_suggestions_test
