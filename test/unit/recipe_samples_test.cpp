// Tests that recipes of NeMo AutoModel for fine-tuning mean what AutoModel means by them: its
// classes of data. Also mtrain's own form of rows of text.
#include <fstream>

#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/options/recipe_options.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace recipe_samples_test {

using namespace mtrain;
using namespace recipe_cases;
using recipe::DataForm;
using recipe::SampleFormat;

namespace {

const std::string kModel =
    "model: {architecture: llama, num_layers: 2, hidden_size: 64, num_attention_heads: 4, "
    "vocab_size: 512, max_position_embeddings: 4096}\n";
const std::string kClasses = "nemo_automodel.components.datasets.llm.";
const std::string kSquad =
    "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
    "step_scheduler: {global_batch_size: 64, local_batch_size: 8, ckpt_every_steps: 50, "
    "val_every_steps: 10, num_epochs: 2, max_steps: 100}\n"
    "dist_env: {backend: nccl, timeout_minutes: 1}\n"
    "rng: {_target_: nemo_automodel.components.training.rng.StatefulRNG, seed: 1111, ranked: "
    "true}\n" +
    kModel + "dataset:\n  _target_: " + kClasses +
    "squad.make_squad_dataset\n  dataset_name: rajpurkar/squad\n  split: train\n"
    "  limit_dataset_samples: 500\n"
    "validation_dataset:\n  _target_: " +
    kClasses +
    "squad.make_squad_dataset\n  dataset_name: rajpurkar/squad\n  split: validation\n"
    "loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}\n"
    "dataloader: {_target_: torchdata.stateful_dataloader.StatefulDataLoader, shuffle: true}\n"
    "optimizer: {_target_: torch.optim.Adam, betas: [0.9, 0.999], eps: 1e-8, lr: 1.0e-5, "
    "weight_decay: 0}\n"
    "ci: {recipe_owner: someone, time: '00:10:00'}\n";

Recipe read(const std::string& text, Diagnostics& diagnostics, const Overrides& set = {}) {
  return plan::load_recipe_text(interchange::model_source(), text, "r.yaml", set, diagnostics, 0,
                                {.dry_run = true});
}
Recipe loaded(const std::string& text, const Overrides& set = {}) {
  Diagnostics diagnostics;
  const Recipe r = read(text, diagnostics, set);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}
bool refuses(const std::string& text, const std::string& gist, const Overrides& set = {}) {
  Diagnostics diagnostics;
  read(text, diagnostics, set);
  INFO(listed(diagnostics));
  return diagnostics.text(recipe::Severity::error).find(gist) != std::string::npos;
}

const std::string kNative = kModel +
                            "dataset:\n  train: {messages: a.jsonl, split: 'train[:1000]', "
                            "template: chat.jinja}\n  seq_length: 512\n";

}  // namespace

TEST_CASE("AutoModel's squad loads as rows of a prompt and its answer") {
  const Recipe r = loaded(kSquad);
  const recipe::SamplesConfig &s = r.dataset.train_samples, &v = r.dataset.validation_samples;
  CHECK(s.format == SampleFormat::prompt_completion);
  CHECK(s.files == std::vector<std::string>{"rajpurkar/squad"});
  CHECK(s.prompt == "Context: {context} Question: {question} Answer: ");
  CHECK(s.completion == "{answers.text[0]|trim}");
  CHECK(s.limit == 500);
  CHECK(s.chat_template == "auto");
  CHECK((s.together && s.headers && !s.cut && s.end_of_text == false));
  CHECK(v.split == "validation");
  CHECK_FALSE(v.limit);
  CHECK(recipe::data_form(r) == DataForm::rows);
  CHECK(plan::dataset_options(r).rows);
  CHECK(r.train.micro_batch_size == 8);
  CHECK(r.train.seed == 1111);
}

TEST_CASE("AutoModel's other classes of data") {
  const auto with_data = [&](const std::string& data) {
    return "recipe: x\nstep_scheduler: {global_batch_size: 8, max_steps: 5}\n" + kModel +
           "dataset:\n  _target_: " + kClasses + data;
  };
  const Recipe swag = loaded(with_data(
      "hellaswag.HellaSwag\n  path_or_dataset: rowan/hellaswag\n  pad_to_max_length: false\n"));
  CHECK(swag.dataset.train_samples.prompt == "{ctx}");
  CHECK(swag.dataset.train_samples.completion == "{endings[label]}");
  CHECK_FALSE(swag.dataset.train_samples.together);
  const Recipe chat = loaded(with_data(
      "chat_dataset.ChatDataset\n  path_or_dataset_id: allenai/tulu-3\n  split: train[:128]\n"
      "  shuffle_seed: 42\n  truncation: true\n  padding: false\n  seq_length: 2048\n"
      "  chat_template: chat.jinja\n"));
  CHECK(chat.dataset.train_samples.format == SampleFormat::messages);
  CHECK(chat.dataset.train_samples.cut);
  CHECK(chat.dataset.train_samples.plain_messages);
  CHECK(chat.dataset.train_samples.shuffle_seed == 42);
  CHECK(chat.dataset.train_samples.chat_template == "chat.jinja");
  CHECK(chat.dataset.seq_length == 2047);  // inputs of a row that is cut at 2048 tokens
  const Recipe columns = loaded(with_data(
      "column_mapped_text_instruction_dataset.ColumnMappedTextInstructionDataset\n"
      "  path_or_dataset_id: [a.jsonl, b.jsonl]\n  split: train\n  answer_only_loss_mask: false\n"
      "  truncation: do_not_truncate\n"
      "  column_mapping: {context: ctx, question: q, answer: a}\n"));
  CHECK(columns.dataset.train_samples.prompt == "{ctx} {q} ");
  CHECK(columns.dataset.train_samples.completion == "{a}");
  CHECK(columns.dataset.train_samples.files.size() == 2);
  CHECK_FALSE(columns.dataset.train_samples.answers_only);
  CHECK_FALSE(columns.dataset.train_samples.cut);
  const Recipe mock = loaded(
      with_data("mock_iterable_dataset.MockIterableDataset\n  seq_len: 256\n  num_samples: 999\n"));
  const plan::DatasetOptions options = plan::dataset_options(mock);
  CHECK(options.mock_train.samples == 999);
  CHECK(options.mock_train.vocab_size == 0);  // the default
  CHECK(options.seq_length == 256);
  CHECK_FALSE(options.rows);
  CHECK(mock.train.micro_batch_size == 1);
  CHECK(refuses(
      with_data("mock_iterable_dataset.MockIterableDataset\n  seq_len: 256\n  vocab_size: 1000\n"),
      "random tokens are below 1000, and the model's vocabulary has 512"));
  CHECK(loaded(with_data("mock_iterable_dataset.MockIterableDataset\n  batch_size: 2\n"))
            .train.micro_batch_size == 2);
  const Recipe cut = loaded(
      with_data("squad.SquadConfig\n  truncation: true\n  padding: max_length\n  fp8: true\n"));
  CHECK_FALSE(cut.dataset.train_samples.cut);  // there is no length
  CHECK(cut.dataset.train_samples.prompt.starts_with("Context: "));
  CHECK(loaded(with_data("chat_dataset.ChatDataset\n  path_or_dataset_id: a/b\n  name: main\n"))
            .dataset.train_samples.subset == "main");
  CHECK(loaded(with_data("chat_dataset.ChatDataset\n  path_or_dataset_id: a.jsonl\n"
                         "  mask_history: true\n"))
            .dataset.train_samples.last_answer_only);
  const Recipe nano = loaded(
      with_data("nanogpt_dataset.NanogptDataset\n  file_pattern: 'data/train_*.bin'\n"
                "  seq_len: 256\n  shuffle_files: true\n  bos_token: 7\n  align_to_bos: false\n"));
  CHECK(nano.dataset.train_samples.format == SampleFormat::tokens);
  CHECK(nano.dataset.train_samples.files == std::vector<std::string>{"data/train_*.bin"});
  CHECK(nano.dataset.seq_length == 256);
  CHECK(recipe::data_form(nano) == DataForm::stream);
  CHECK(refuses(with_data("nanogpt_dataset.NanogptDataset\n  file_pattern: a.bin\n"
                          "  align_to_bos: true\n"),
                "samples begin where the one before ends"));
}

TEST_CASE("a pattern stands for the pairs of files that it matches, in order") {
  const TemporaryFolder folder;
  for (const char* name : {"b_text", "a_text", "c_other"})
    for (const char* ending : {".bin", ".idx"})
      std::ofstream(folder.path / (std::string(name) + ending)) << "x";
  const auto prefixes = [&](const std::string& pattern) {
    return loaded(kModel + "dataset: {train: '" + (folder / pattern).string() +
                  "', seq_length: 64}\ntrain: {steps: 1, global_batch_size: 8}\n")
        .dataset.train;
  };
  const std::vector<std::string> both{(folder / "a_text").string(), (folder / "b_text").string()};
  CHECK(prefixes("*_text") == both);
  CHECK(prefixes("*_text*") == both);
  CHECK(prefixes("none_*") == std::vector<std::string>{(folder / "none_*").string()});
}

TEST_CASE("AutoModel's recipes without validation data have no validation") {
  const std::string scheduler = "step_scheduler: {val_every_steps: 10, max_steps: 5}\n";
  const std::string data = kModel + "dataset:\n  _target_: " + kClasses +
                           "mock_iterable_dataset.MockIterableDataset\n  seq_len: 64\n";
  CHECK(loaded("recipe: x\n" + scheduler + data).validation.every_steps == 0);
  CHECK(loaded(kSquad).validation.every_steps == 10);
  CHECK(refuses(kNative + scheduler, "there is no validation data"));
  CHECK(
      refuses("recipe: x\nvalidation: {every_steps: 10}\n" + data, "there is no validation data"));
}

TEST_CASE("AutoModel's optimizers decay all parameters") {
  const Recipe none = loaded(kSquad), some = loaded(kSquad, {"optimizer.weight_decay=0.1"});
  CHECK(none.optimizer.groups.empty());
  REQUIRE(some.optimizer.groups.size() == 1);
  CHECK(some.optimizer.groups[0].match == ".");
  CHECK(some.optimizer.groups[0].weight_decay == 0.1);
  const std::string own = "optimizer: {_target_: torch.optim.AdamW, weight_decay: 0.1}\n";
  CHECK(loaded(kNative + own).optimizer.groups.empty());
}

TEST_CASE("rows of text are at most as long as the model has positions") {
  CHECK(loaded(kSquad).dataset.seq_length == 1024);
  CHECK(loaded(kSquad, {"model.max_position_embeddings=256"}).dataset.seq_length == 256);
}

TEST_CASE("a template may have several lines, and is printed so that it loads again") {
  const std::string lines = "{% for m in messages %}\n{{ m.content }}\n{% endfor %}\n";
  const Recipe r =
      loaded(kModel +
             "dataset:\n  train:\n    messages: a.jsonl\n    template: |\n"
             "      {% for m in messages %}\n      {{ m.content }}\n      {% endfor %}\n");
  CHECK(r.dataset.train_samples.chat_template == lines);
  CHECK(loaded(print_recipe(r)).dataset.train_samples.chat_template == lines);
}

TEST_CASE("rows of text have a short form, which settings and later layers change") {
  const Recipe r = loaded(kNative);
  CHECK(r.dataset.train_samples.format == SampleFormat::messages);
  CHECK(r.dataset.train_samples.files == std::vector<std::string>{"a.jsonl"});
  CHECK(r.dataset.train_samples.split == "train[:1000]");
  CHECK(r.dataset.train_samples.chat_template == "chat.jinja");
  const Recipe changed =
      loaded(kNative, {"dataset.train.limit=7", "dataset.train.messages=b.jsonl"});
  CHECK(changed.dataset.train_samples.limit == 7);
  CHECK(changed.dataset.train_samples.files == std::vector<std::string>{"b.jsonl"});
  const Recipe tokens = loaded(kNative, {"dataset.train=tokens"});
  CHECK_FALSE(tokens.dataset.train_samples.on());
  CHECK(tokens.dataset.train == std::vector<std::string>{"tokens"});
  const Recipe text = loaded(kModel + "dataset: {train: {text: a.jsonl}}\n");
  CHECK(recipe::data_form(text) == DataForm::stream);
  const Recipe packs = loaded(kNative, {"packed_sequence.packed_sequence_size=256"});
  CHECK(recipe::data_form(packs) == DataForm::packed);
  CHECK(refuses(kNative, "is not a split", {"dataset.train.split=train[5]"}));
  CHECK(refuses(kNative, "did you mean limit?", {"dataset.train.limits=5"}));
  CHECK(refuses(kNative, "form is packed", {"dataset.form=packed"}));
  CHECK(refuses(kModel + "dataset: {train: {split: train}}\n", "no training data"));
}

TEST_CASE("the command line changes arguments of AutoModel's classes by their names") {
  const Recipe r =
      loaded(kSquad, {"dataset.split=train[:50]", "dataset.limit_dataset_samples=7",
                      "validation_dataset.split=validation[10:]", "dataset.dataset_name=a.jsonl"});
  CHECK(r.dataset.train_samples.split == "train[:50]");
  CHECK(r.dataset.train_samples.limit == 7);
  CHECK(r.dataset.validation_samples.split == "validation[10:]");
  CHECK(r.dataset.train_samples.files == std::vector<std::string>{"a.jsonl"});
  CHECK_FALSE(loaded(kSquad, {"~dataset.limit_dataset_samples"}).dataset.train_samples.limit);
  // After a class of the command line its arguments count, and after mtrain's own form none.
  const std::string chat = "dataset._target_=" + kClasses + "chat_dataset.ChatDataset";
  CHECK(loaded(kSquad, {chat, "dataset.path_or_dataset_id=b.jsonl"}).dataset.train_samples.files ==
        std::vector<std::string>{"b.jsonl"});
  CHECK(loaded(kSquad, {"dataset.train=tokens", "dataset.split=[9, 1]"}).dataset.split ==
        std::vector<double>{9, 1});
}

namespace {

const std::string kPretraining = "_target_: " + kClasses + "megatron_dataset.MegatronPretraining";

// A recipe of AutoModel that trains on tokens, and validates on them if `validation` says how.
std::string pretraining(const std::string& train, const std::string& validation = "") {
  return "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
         "step_scheduler: {max_steps: 10, val_every_steps: 5}\n" +
         kModel + "dataset: {" + kPretraining + ", " + train + "}\n" +
         (validation.empty() ? ""
                             : "validation_dataset: {" + kPretraining + ", " + validation + "}\n");
}

using Shares = std::vector<double>;

// The documents that a part of the recipe's data reads of 1,000.
using Range = std::pair<int64_t, int64_t>;
Range trained(const Recipe& r) { return plan::dataset_options(r).train.documents.range(1000); }
Range validated(const Recipe& r) {
  return plan::dataset_options(r).validation.documents.range(1000);
}

}  // namespace

TEST_CASE("MegatronPretraining trains on the first share of a split, and validates on the second") {
  const Recipe r =
      loaded(pretraining("paths: a, split: '0.99, 0.01, 0.00', splits_to_build: train",
                         "paths: a, split: '0.99, 0.01, 0.00', splits_to_build: validation"));
  CHECK(r.dataset.split == Shares{0.99, 0.01, 0});
  CHECK(trained(r) == Range{0, 990});
  CHECK(validated(r) == Range{990, 1000});
  Diagnostics diagnostics;
  read(pretraining("paths: a, split: [98, 2]", "paths: a, split: [98, 2]"), diagnostics);
  CHECK(diagnostics.text(recipe::Severity::warning) == "");

  // AutoModel's own split holds where the recipe gives none. Without a validation_dataset nothing
  // is validated.
  const Recipe by_default = loaded(pretraining("paths: a"));
  CHECK(trained(by_default) == Range{0, 900});
  CHECK(by_default.dataset.validation.empty());
  CHECK(by_default.validation.every_steps == 0);
  CHECK(validated(loaded(pretraining("paths: a", "paths: b"))) == Range{900, 950});

  // Paths of each part are read whole.
  const Recipe parts = loaded(pretraining("paths: {train: [a, b], valid: c}, split: '98,2'",
                                          "paths: {train: [a, b], valid: c}"));
  CHECK(parts.dataset.train == std::vector<std::string>{"a", "b"});
  CHECK(parts.dataset.validation == std::vector<std::string>{"c"});
  CHECK(trained(parts) == Range{0, 1000});
  CHECK(validated(parts) == Range{0, 1000});
  CHECK(refuses(pretraining("paths: {valid: c}"), "has no `train`"));

  CHECK(refuses(pretraining("paths: a, splits_to_build: test"), "first part of the split"));
  CHECK(refuses(pretraining("paths: a", "paths: a, splits_to_build: train"),
                "second part of the split"));
  CHECK(refuses(pretraining("paths: a, split: '0,1,0'"), "no share for training"));
}

TEST_CASE("the paths of MegatronPretraining may stand in a JSON file") {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "blend.json") << R"(["0.3", "a", "0.7", "b"])";
  std::ofstream(folder.path / "parts.json") << R"({"train": ["a"], "dev": ["c"], "test": ["d"]})";
  std::ofstream(folder.path / "broken.json") << R"({"train": )";
  const auto paths = [&](const char* name) { return "paths: " + (folder.path / name).string(); };
  const Recipe blend = loaded(pretraining(paths("blend.json")));
  CHECK(blend.dataset.train == std::vector<std::string>{"a", "b"});
  CHECK(blend.dataset.train_weights == Shares{0.3, 0.7});
  CHECK(trained(blend) == Range{0, 900});
  const Recipe parts = loaded(pretraining(paths("parts.json"), paths("parts.json")));
  CHECK(parts.dataset.validation == std::vector<std::string>{"c"});
  CHECK(trained(parts) == Range{0, 1000});
  CHECK(refuses(pretraining(paths("none.json")), "none.json"));
  CHECK(refuses(pretraining(paths("broken.json")), "broken.json"));
}

TEST_CASE("a split divides the training data, and its second share is validated") {
  const std::string data = kModel + "train: {steps: 3}\ndataset: {train: a, split: ";
  for (const char* split : {"'969,30,1'", "[969, 30, 1]", "\"969, 30, 1\""}) {
    const Recipe r = loaded(data + split + "}\nvalidation: {every_steps: 2}\n");
    CHECK(r.dataset.split == Shares{969, 30, 1});
    CHECK(r.dataset.validation == std::vector<std::string>{"a"});
    CHECK(trained(r) == Range{0, 969});
    CHECK(validated(r) == Range{969, 999});
    const Recipe printed = loaded(print_recipe(r));
    CHECK(validated(printed) == Range{969, 999});
  }
  const Recipe flag = loaded(data + "[1]}\n", {"split=98,2,0"});
  CHECK(flag.dataset.split == Shares{98, 2, 0});
  const Recipe other = loaded(data + "[98, 2], validation: b}\n");
  CHECK(validated(other) == Range{0, 1000});
  CHECK(loaded(data + "[1, 0, 0]}\n").dataset.validation.empty());
  CHECK(refuses(data + "[1, 1, 1, 1]}\n", "more than three shares"));
  CHECK(refuses(data + "[0, 0, 0]}\n", "no share for training"));
  CHECK(refuses(data + "[-1, 2]}\n", "-1"));
  CHECK(refuses(data + "'train[:90%]'}\n", "train[:90%]"));
  CHECK(refuses(kNative, "rows of text have their own", {"dataset.split=[9, 1]"}));
}

}  // namespace recipe_samples_test
