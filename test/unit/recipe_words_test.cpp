// Tests the hints for words of other tools.
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "interchange/model_source.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/word_hints.h"
#include "recipe/print/explain.h"
#include "recipe/schema/schema.h"
#include "recipe_cases.h"

namespace recipe_words_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

bool is_name(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return std::islower(static_cast<unsigned char>(c)) || std::isdigit(c) || c == '_' || c == '.';
  });
}

// Returns the errors of a recipe with these lines.
std::string messages_of(const std::string& lines, const Overrides& set = {}) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + lines, "base.yaml", set, diagnostics,
                         1);
  return diagnostics.text(Severity::error);
}

}  // namespace

TEST_CASE("every setting that the hint for another tool's word names exists") {
  std::set<std::string_view> seen;
  for (const WordHint& row : word_hints()) {
    INFO(row.word << ": " << row.hint());
    CHECK(seen.insert(row.word).second);
    const std::vector<std::string> parts = split(row.hint(), '`');
    for (size_t i = 1; i < parts.size(); i += 2) {
      if (!is_name(parts[i]) || parts[i] == "mtrain") continue;  // a command, or an example
      INFO(parts[i]);
      const SchemaRow* field = find_row(parts[i]);
      CHECK(((field && field->path == parts[i]) || find_section(parts[i])));
    }
  }
  CHECK(seen.size() >= 150);
}

TEST_CASE("no word of another tool that gets a hint is accepted anywhere") {
  for (const WordHint& row : word_hints()) {
    INFO(row.word);
    CHECK_FALSE(names_setting(row.word));
    for (const SchemaSection& section : schema_sections())
      CHECK_FALSE(find_row(section.path + "." + std::string(row.word)));
  }
}

TEST_CASE("a word of another tool gets its hint in any section, alone, and as a flag") {
  for (const WordHint& row : word_hints()) {
    const std::string word(row.word), hint = "hint: " + row.hint();
    INFO(word);
    REQUIRE_THAT(messages_of(word + ": 1\n"), Contains(hint));
    if (word.find('.') != std::string::npos) continue;  // a word of one section
    REQUIRE_THAT(messages_of("recompute: {" + word + ": 1}\n"), Contains(hint));
    REQUIRE_THAT(messages_of("", {word + "=1"}), Contains(hint));
    REQUIRE_THAT(explain(word), Contains(row.hint()));
  }
}

TEST_CASE("hints name the setting that the word means") {
  CHECK_THAT(messages_of("optimizer: {learning_rate: 1e-3}\n"), Contains("write `optimizer.lr`"));
  CHECK_THAT(messages_of("train.num_train_epochs: 3\n"), Contains("write `train.epochs`"));
  CHECK_THAT(messages_of("train.gradient_accumulation_steps: 8\n"),
             Contains("`train.global_batch_size`"));
  CHECK_THAT(messages_of("lr_scheduler: {name: cosine}\n"), Contains("write `lr_scheduler.style`"));
  CHECK_THAT(messages_of("distributed.tp: 2\n"), Contains("write `distributed.tp_size`"));
  CHECK_THAT(messages_of("pipeline: {pp_schedule: 1f1b}\n"),
             Contains("write `distributed.pipeline.pp_schedule`"));
  CHECK_THAT(messages_of("distributed: {strategy: fsdp}\n"), Contains("did you mean `fsdp2`?"));
  CHECK_THAT(messages_of("distributed: {strategy: mfsdq}\n"), !Contains("`mfsdp`"));
  CHECK_THAT(messages_of("train.device: cuda:0\n"), Contains("did you mean `cuda`?"));
  CHECK_THAT(messages_of("distributed: {tp_size: -2}\n"), Contains("distributed.tp_size"));
  CHECK_THAT(messages_of("model.n_layers: 4\n"), Contains("write `model.num_layers`"));
  CHECK_THAT(messages_of("optimizer: {learing_rate: 1e-3}\n"),
             Contains("did you mean `optimizer.lr`?"));
  CHECK_THAT(messages_of("lr_scheduler: {warmup_ratio: 0.1}\n"), Contains("ratio x the steps"));
}

TEST_CASE("each key of another tool's section gets a hint of its own") {
  const std::string all = messages_of(
      "training: {seq_len: 2048, local_batch_size: 2, steps: 9, max_norm: 1}\n"
      "parallelism: {tensor_parallel_degree: 2}\n"
      "activation_checkpoint: {mode: full}\n");
  CHECK_THAT(all, Contains("training.seq_len: there is no such key\n    hint: ") &&
                      Contains("write `dataset.seq_length`"));
  CHECK_THAT(all, Contains("training.steps: there is no such key\n    hint: write "
                           "`train.steps`"));
  CHECK_THAT(all, Contains("write `distributed.tp_size`"));
  CHECK_THAT(all, Contains("write `recompute: full`"));
  CHECK_THAT(messages_of("parallelism: 3\n"), Contains("its settings are in `distributed` here"));
}

TEST_CASE("an unknown key without a similar one gets the keys of its section") {
  CHECK_THAT(messages_of("optimizer: {zzzzzzzz: 3}\n"),
             Contains("the keys of optimizer are name, lr, betas, eps, weight_decay"));
  CHECK_THAT(messages_of("zzzzzzzz: 3\n"),
             Contains("the sections are model, dataset, tokenizer, train"));
  CHECK_THAT(messages_of("zzzzzzzz: {y: 3}\n"), Contains("the sections are model"));
  // Equal sections do not make keys similar.
  CHECK_THAT(messages_of("checkpoint: {colour: 3}\n"), Contains("the keys of checkpoint are dir"));
  CHECK_THAT(messages_of("", {"colour=3"}), Contains("the sections are"));
}

TEST_CASE("a suggestion that is another system's name also gives the setting's own") {
  CHECK_THAT(messages_of("model.tensor_model_parallel_sise: 2\n"),
             Contains("did you mean `model.tensor_model_parallel_size` (`distributed.tp_size`)?"));
}

TEST_CASE("explain searches names, other names and help texts") {
  CHECK_THAT(explain("lr"), Contains("optimizer.lr\n  peak learning rate"));
  CHECK_THAT(explain("learning_rate"),
             Contains("write `optimizer.lr`") && Contains("peak learning rate"));
  CHECK_THAT(explain("rope_theta"), Contains("model.rotary_base\n"));
  CHECK_THAT(explain("wandb"), Contains("has no effect in mtrain"));
  CHECK_THAT(explain("peft"), Contains("adapters"));
  CHECK_THAT(explain("gradient norm"), Contains("optimizer.clip_grad"));
  CHECK_THAT(explain("Perfetto"), Contains("debug.trace"));
  CHECK_THAT(explain("warmup"), Contains("lr_scheduler.warmup_steps"));
  CHECK_THROWS_WITH(explain("qqqqqqqq"), Contains("no recipe field"));
}

}  // namespace recipe_words_test
