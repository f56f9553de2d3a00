// Tests loading, overriding and printing of recipes, and the errors for mistakes in their text.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "recipe/schema/schema.h"
#include "test/support/temporary_folder.h"

namespace recipe_load_test {

using namespace mtrain;
using namespace mtrain::recipe;
using Catch::Matchers::Contains;

namespace {

const std::string kMinimal = "dataset: {train: data/x}\n";

Recipe load(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Diagnostics diagnostics;
  Recipe r =
      plan::load_recipe_text(interchange::model_source(), text, "r.yaml", overrides, diagnostics);
  INFO(diagnostics.text(Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

std::string errors(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), text, "r.yaml", overrides, diagnostics);
  return diagnostics.text(Severity::error);
}

}  // namespace

TEST_CASE("a recipe fills its sections and leaves the rest at the defaults") {
  const Recipe r = load(
      "model: {hidden_size: 128, num_attention_heads: 8}\n"
      "dataset:\n  train: [a, b]\n  train_weights: [0.25, 3]\n"
      "optimizer: {lr: 1e-4, betas: [0.8, 0.9]}\n"
      "mixed_precision: fp32\n");
  REQUIRE(r.model.hidden_size == 128);
  REQUIRE(r.model.num_layers == 12);
  REQUIRE(r.dataset.train == std::vector<std::string>{"a", "b"});
  REQUIRE(r.dataset.train_weights == std::vector<double>{0.25, 3});
  REQUIRE(r.optimizer.lr == 1e-4);
  REQUIRE(r.optimizer.betas[0] == 0.8);
  REQUIRE(r.mixed_precision.name == Precision::fp32);
  REQUIRE(r.origin("model.hidden_size") == Origin::recipe);
  REQUIRE(r.origin("model.num_layers") == Origin::by_default);
}

TEST_CASE("open sizes follow from the others and are marked as derived") {
  const Recipe r = load("model: {hidden_size: 256, num_attention_heads: 8}\n" + kMinimal +
                        "train: {steps: 70, seed: 5}\n");
  REQUIRE(r.model.num_query_groups == 8);
  REQUIRE(r.model.kv_channels == 32);
  REQUIRE(r.model.ffn_hidden_size == 704);
  REQUIRE(r.model.max_position_embeddings == 1024);
  REQUIRE(r.lr_scheduler.decay_steps == 70);
  REQUIRE(r.dataset.seed == 5);
  REQUIRE(r.train.run_dir == "runs/r");
  REQUIRE(r.checkpoint.dir == "runs/r/checkpoints");
  REQUIRE(r.origin("model.kv_channels") == Origin::derived);
}

TEST_CASE("the architecture sets its family's defaults, whatever the order of the keys") {
  const Recipe gpt2 = load(kMinimal + "model: {add_bias_linear: false, architecture: gpt2}\n");
  REQUIRE(gpt2.model.normalization == NormKind::layer);
  REQUIRE(gpt2.model.position_embedding == PositionEmbedding::learned);
  REQUIRE(gpt2.model.share_embeddings_and_output_weights);
  REQUIRE_FALSE(gpt2.model.add_bias_linear);
  REQUIRE(gpt2.model.ffn_hidden_size == 3072);
  REQUIRE(gpt2.origin("model.normalization") == Origin::derived);
  REQUIRE(gpt2.origin("model.add_bias_linear") == Origin::recipe);
  REQUIRE(load(kMinimal + "model: {architecture: qwen2}\n").model.add_qkv_bias);
  REQUIRE(load(kMinimal + "model: {architecture: qwen3}\n").model.qk_layernorm);
  REQUIRE(load(kMinimal + "model: {architecture: mistral}\n").model.rotary_base == 1e6);
}

TEST_CASE("overrides win over the recipe, and the later over the earlier") {
  const std::string text = kMinimal + "optimizer: {lr: 1e-3}\nmodel: {num_layers: 3}\n";
  const Recipe r =
      load(text, {"optimizer.lr=1e-4", "optimizer.lr=2e-4", "optimizer.betas=[0.5,0.6]",
                  "checkpoint.load=none", "debug.trace=t.json", "~model.num_layers",
                  "cfg.train.train-iters=7", "dataset.train=[p,q]"});
  REQUIRE(r.optimizer.lr == 2e-4);
  REQUIRE(r.optimizer.betas[1] == 0.6);
  REQUIRE_FALSE(r.checkpoint.load);
  REQUIRE(r.debug.trace == "t.json");
  REQUIRE(r.model.num_layers == 12);
  REQUIRE(r.train.steps == 7);
  REQUIRE(r.dataset.train.size() == 2);
  REQUIRE(r.origin("optimizer.lr") == Origin::command_line);
  REQUIRE(load(text, {"~optimizer"}).optimizer.lr == 3e-4);
}

TEST_CASE("an override that is wrong names itself") {
  REQUIRE_THAT(errors(kMinimal, {"optimizer.lr"}),
               Contains("the setting `") && Contains("path=value"));
  REQUIRE_THAT(errors(kMinimal, {"a=1", "+model.x=1"}),
               Contains("the setting `+") && Contains("leave the +"));
  REQUIRE_THAT(errors(kMinimal, {"optimiser.lr=1"}), Contains("did you mean `optimizer.lr`"));
  REQUIRE_THAT(errors(kMinimal, {"~optimizer.lrr"}), Contains("did you mean `~optimizer.lr`"));
  REQUIRE_THAT(errors(kMinimal, {"model.num_layers=[1"}), Contains("cannot be read"));
  REQUIRE_THAT(errors(kMinimal, {"model.num_layers=two"}),
               Contains("the setting `") && Contains("`two`"));
  REQUIRE_THAT(errors(kMinimal, {"=3"}), Contains("is not an override"));
}

TEST_CASE("spellings of other systems lead to the same field") {
  const Recipe r = load(
      "model: {num_key_value_heads: 4, rope-theta: 5e5, tie_word_embeddings: yes, seq_length: 64}\n"
      "dataset: {train: x}\n"
      "step_scheduler: {max_steps: 9, local_batch_size: 2, global_batch_size: 8}\n"
      "clip_grad_norm: {max_norm: 0.5}\n"
      "scheduler: {lr_warmup_iters: 3}\n");
  REQUIRE(r.model.num_query_groups == 4);
  REQUIRE(r.model.rotary_base == 5e5);
  REQUIRE(r.model.share_embeddings_and_output_weights);
  REQUIRE(r.dataset.seq_length == 64);
  REQUIRE(r.train.steps == 9);
  REQUIRE(r.train.micro_batch_size == 2);
  REQUIRE(r.optimizer.clip_grad == 0.5);
  REQUIRE(r.lr_scheduler.warmup_steps == 3);
}

TEST_CASE("two spellings with different values are refused, with equal values accepted") {
  const std::string text = errors(
      "dataset:\n  train: x\n  seq_length: 64\n"
      "model:\n  seq_length: 128\n");
  REQUIRE_THAT(text, Contains("r.yaml:5:3") && Contains("r.yaml:3:3") && Contains("set twice"));
  REQUIRE(
      load("dataset: {train: x, seq_length: 64}\nmodel: {seq_length: 6_4}\n").dataset.seq_length ==
      64);
  REQUIRE(
      load("dataset: {train: x, seq_length: 64}\n", {"model.seq_length=32"}).dataset.seq_length ==
      32);
}

TEST_CASE("an unknown key is an error with the nearest known key") {
  REQUIRE_THAT(errors(kMinimal + "model: {hiden_size: 3}\n"),
               Contains("did you mean `model.hidden_size`"));
  REQUIRE_THAT(errors(kMinimal + "optimiser: {lr: 3}\n"), Contains("did you mean `optimizer`"));
  REQUIRE_THAT(errors(kMinimal + "optimizer: {warmup_steps: 3}\n"),
               Contains("did you mean `lr_scheduler.warmup_steps`"));
  REQUIRE_THAT(errors(kMinimal + "zzzzzzzzzz: 3\n"), Contains("no such key"));
}

TEST_CASE("numbers and words are read as they look, where YAML 1.1 reads them otherwise") {
  const auto steps = [](const std::string& v) {
    return load(kMinimal + "train: {steps: " + v + "}\n").train.steps;
  };
  const auto lr = [](const std::string& v) {
    return load(kMinimal + "optimizer: {lr: " + v + "}\n").optimizer.lr;
  };
  REQUIRE(lr("1e-4") == 1e-4);
  REQUIRE(lr("3E-4") == 3e-4);
  REQUIRE(lr(".5") == 0.5);
  REQUIRE(lr("1") == 1.0);
  REQUIRE(lr("+2.5e-1") == 0.25);
  REQUIRE(steps("1_000") == 1000);
  REQUIRE(steps("1e6") == 1000000);
  REQUIRE(steps("2.0") == 2);
  REQUIRE(load(kMinimal + "debug: {check_nan: No, strict: on}\n").debug.check_nan == false);
  REQUIRE(load(kMinimal + "train: {run_dir: no}\n").train.run_dir == "no");
  REQUIRE(load(kMinimal + "train: {steps: none}\n").train.steps == 1000);
  REQUIRE(load(kMinimal + "debug: {trace: 'none'}\n").debug.trace == "none");
  REQUIRE(load(kMinimal + "debug: {trace: ~}\ncheckpoint:\n").debug.trace == std::nullopt);

  for (const char* wrong : {"010", "1.5", "0x10", "1:30", "ten", "'10'", "[1]", "{a: 1}", "true",
                            "1e300", "99999999999999999999", ".inf", "nan", "-", "_1"})
    REQUIRE_THAT(errors(kMinimal + "train: {steps: " + wrong + "}\n"),
                 Contains("train.steps") && Contains("hint"));
  for (const char* wrong : {"fast", "'1e-4'", ".nan", "inf", "1e999", "1 e-4", "1,5"})
    REQUIRE_THAT(errors(kMinimal + "optimizer:\n  lr: " + wrong + "\n"), Contains("optimizer.lr"));
  REQUIRE_THAT(errors(kMinimal + "debug: {strict: 1}\n"), Contains("true or false"));
  REQUIRE_THAT(errors(kMinimal + "debug: {strict: 'true'}\n"), Contains("without quotes"));
  REQUIRE_THAT(errors(kMinimal + "optimizer: {lr: fast}\n"),
               Contains("expected a number") && Contains("`fast`"));
  REQUIRE_THAT(errors(kMinimal + "model: {normalization: rmsnrm}\n"),
               Contains("did you mean `rmsnorm`"));
  REQUIRE_THAT(errors(kMinimal + "optimizer: {betas: [0.9]}\n"), Contains("list of 2"));
  REQUIRE_THAT(errors(kMinimal + "optimizer: 3\n"), Contains("section"));
}

TEST_CASE("text that is not YAML gives one message with its place") {
  REQUIRE_THAT(errors("model:\n\thidden_size: 4\n"), Contains("r.yaml:2:1") && Contains("tab"));
  REQUIRE_THAT(errors("model:\n  a: 1\n   b: 2\n"),
               Contains("r.yaml:3:4") && Contains("indent b by 2 spaces"));
  REQUIRE_THAT(errors("model: {a: 1\n"), Contains("r.yaml:1:8") && Contains("`{` that opens here"));
  REQUIRE_THAT(errors("model:\n  num_layers: 1\n  num_layers: 2\n"),
               Contains("r.yaml:3:3") && Contains("r.yaml:2:3") && Contains("twice"));
  REQUIRE_THAT(errors(std::string("model: a\0b\n", 11)), Contains("0x00"));
  REQUIRE_THAT(errors("- 1\n- 2\n"), Contains("mapping of sections"));
  REQUIRE_THAT(errors("just text\n"), Contains("mapping of sections"));
  REQUIRE_THAT(errors(kMinimal + "---\na: 1\n"), Contains("second document"));
  REQUIRE_THAT(errors(std::string(2000, '[')), Contains("r.yaml"));
  REQUIRE_THAT(errors("{a: " + std::string(40, '[') + std::string(40, ']') + "}"),
               Contains("deep"));
  REQUIRE_THAT(errors("[a]: 1\n"), Contains("a key must be a word"));
  REQUIRE_THAT(errors("a: &a [*a]\n"), Contains("r.yaml:1"));
  REQUIRE_THAT(errors(std::string(3 << 20, 'x')), Contains("too large"));
  std::string bomb = "a0: &a0 [x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string below = "*a" + std::to_string(i - 1), name = "a" + std::to_string(i);
    bomb += name + ": &" + name + " [" + below;
    for (int k = 0; k < 9; ++k) bomb += ", " + below;
    bomb += "]\n";
  }
  REQUIRE_THAT(errors(bomb), Contains("expands to more than"));
}

TEST_CASE("anchors and merge keys work") {
  const Recipe r = load(kMinimal +
                        "optimizer: &o {lr: 0.5, eps: 1e-7}\n"
                        "lr_scheduler: {min_lr: 0.25}\n"
                        "model: {num_layers: &n 3, num_attention_heads: *n}\n");
  REQUIRE(r.model.num_attention_heads == 3);
  const Recipe m = load("dataset: &d {train: x, seq_length: 5}\nmodel: {num_layers: 2}\n");
  REQUIRE(m.dataset.seq_length == 5);
  REQUIRE(load("model: {<<: {num_layers: 7, hidden_size: 64}, hidden_size: 96}\n" + kMinimal)
              .model.hidden_size == 96);
}

TEST_CASE("all mistakes are reported together, in the order of the file") {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(),
                         "optimizer:\n  lr: fast\nmodel:\n  hidden: 3\n  num_layers: 0\n", "r.yaml",
                         {"train.steps=x"}, diagnostics);
  const auto list = diagnostics.sorted();
  REQUIRE(list.size() == 5);
  REQUIRE(list[0].location.line == 2);
  REQUIRE(list[1].location.line == 4);
  REQUIRE(list[2].location.line == 5);
  REQUIRE(list[4].location.source == "the setting `train.steps=x`");
  REQUIRE(list[3].field == "dataset.train");
  REQUIRE_THROWS_AS(diagnostics.throw_if_errors(), UserError);
}

TEST_CASE("a file that is not there, a folder or empty") {
  const auto of = [](const std::string& path) {
    Diagnostics diagnostics;
    plan::load_recipe(interchange::model_source(), path, {}, diagnostics);
    return diagnostics.text(Severity::error);
  };
  const std::string recipes = std::string(MTRAIN_SOURCE_DIR) + "/recipes/";
  REQUIRE_THAT(of(recipes + "quickstat.yaml"),
               Contains("did you mean") && Contains("quickstart.yaml"));
  REQUIRE_THAT(of(recipes), Contains("directory"));
  const TemporaryFolder folder;
  std::ofstream(folder / "empty.yaml") << " \n";
  REQUIRE_THAT(of((folder / "empty.yaml").string()), Contains("empty"));
}

TEST_CASE("a printed recipe loads to the same recipe") {
  const Recipe r = load(
      "model: {architecture: qwen3, rope_scaling: llama3}\n"
      "dataset: {train: ['a b', \"it's\"], seq_length: 77}\n"
      "optimizer: {lr: 1e-5, eps: 1e-30}\n"
      "debug: {trace: 'true'}\nrecompute: {granularity: selective}\n");
  const std::string text = print_recipe(r);
  const Recipe again = load(text);
  for (const auto& row : schema_rows()) {
    INFO(row.path);
    REQUIRE(row.show(again) == row.show(r));
  }
  REQUIRE_THAT(text, Contains("# derived") && Contains("# recipe") && Contains("# default"));
  REQUIRE(print_recipe(load(print_recipe(r, false)), false) == print_recipe(r, false));
}

TEST_CASE("the recipes of the repository load at the world size that their head names") {
  // Replaces the folder of the first run's model, with which a recipe may begin.
  const TemporaryFolder quickstart;
  std::ofstream(quickstart / "config.json")
      << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 257,
             "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
             "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 256,
             "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";
  const std::string from = "from: runs/quickstart_hf";
  int count = 0, continued = 0, for_gpus = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(MTRAIN_SOURCE_DIR) + "/recipes")) {
    // These files are parts of recipes, or describe clusters and how programs use them.
    const auto folder = entry.path().parent_path().filename();
    if (entry.path().extension() != ".yaml" || folder == "base" || folder == "clusters" ||
        folder == "stacks")
      continue;
    const std::string text = read_file(entry.path());
    const std::string mark = "# world size: ";
    const auto at = text.find(mark);
    const int64_t world = at == std::string::npos ? 1 : std::stoll(text.substr(at + mark.size()));
    std::vector<std::string> overrides;
    if (text.find(from) != std::string::npos) {
      overrides.push_back("model.from=" + quickstart.path.string());
      ++continued;
    }
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe(interchange::model_source(), entry.path().string(),
                                       overrides, diagnostics, world);
    INFO(diagnostics.text(Severity::error) << diagnostics.text(Severity::warning));
    REQUIRE_FALSE(diagnostics.has_errors());
    REQUIRE(diagnostics.text(Severity::warning).empty());
    // A recipe whose first lines name hardware is for GPUs, also if this machine has none.
    if (text.find("# Hardware:") != std::string::npos) {
      CHECK(r.train.device == recipe::DeviceChoice::cuda);
      ++for_gpus;
    }
    // The printed recipe has no ignored settings, so strict loads it, too.
    for (const std::vector<std::string>& set :
         std::vector<std::vector<std::string>>{{}, {"debug.strict=true"}}) {
      Diagnostics again;
      plan::load_recipe_text(interchange::model_source(), print_recipe(r), "printed", set, again,
                             world);
      INFO(again.text(Severity::error) << again.text(Severity::warning));
      REQUIRE_FALSE(again.has_errors());
      REQUIRE(again.text(Severity::warning).empty());
    }
    ++count;
  }
  REQUIRE(count >= 15);
  REQUIRE(continued >= 1);
  REQUIRE(for_gpus >= 20);
}

TEST_CASE("values may refer to the environment and to other fields") {
  setenv("MTRAIN_TEST_LR", "2e-3", 1);
  unsetenv("MTRAIN_TEST_NONE");
  const Recipe r = load(
      "optimizer: {lr: \"${env:MTRAIN_TEST_LR}\"}\n"
      "model:\n  num_layers: ${train.steps}\n  hidden_size: ${env:MTRAIN_TEST_NONE,96}\n"
      "dataset:\n  train: ['${train.run_dir}/a', b]\n  validation: ${dataset.train}\n"
      "train:\n  steps: 4\n  run_dir: runs/x${model.hidden_size}\n  log_every: "
      "${validation.steps}\n"
      "debug: {trace: '$${x}'}\n");
  REQUIRE(r.optimizer.lr == 2e-3);
  REQUIRE(r.model.num_layers == 4);
  REQUIRE(r.model.hidden_size == 96);
  REQUIRE(r.dataset.validation == std::vector<std::string>{"runs/x96/a", "b"});
  REQUIRE(r.train.log_every == 10);  // the default of validation.steps
  REQUIRE(r.debug.trace == "${x}");
  REQUIRE(load(kMinimal + "train: {steps: '${model.num_layers}'}\n", {"model.num_layers=5"})
              .train.steps == 5);

  REQUIRE_THAT(
      errors(kMinimal +
             "train:\n  steps: ${model.num_layers}\nmodel:\n  num_layers: ${train.steps}\n"),
      Contains("circle") && Contains("model.num_layers -> train.steps -> model.num_layers"));
  REQUIRE_THAT(errors(kMinimal + "train:\n  run_dir: a${train.run_dir}\n"), Contains("circle"));
  REQUIRE_THAT(errors(kMinimal + "train:\n  run_dir: ${env:MTRAIN_TEST_NONE}\n"),
               Contains("is not set"));
  REQUIRE_THAT(errors(kMinimal + "train:\n  run_dir: ${train.stps}\n"),
               Contains("did you mean ${train.steps}"));
  REQUIRE_THAT(errors(kMinimal + "train:\n  run_dir: x${train.steps\n"), Contains("closing brace"));
  REQUIRE_THAT(errors(kMinimal + "train:\n  run_dir: x${dataset.train_weights}\n"),
               Contains("inside a text"));
  REQUIRE_THAT(errors(kMinimal + "train: {steps: '${env:MTRAIN_TEST_LR}'}\n"),
               Contains("whole number"));
}

TEST_CASE("a recipe may be based on others") {
  namespace fs = std::filesystem;
  const fs::path dir = fs::temp_directory_path() / ("mtrain_base_" + std::to_string(getpid()));
  fs::create_directories(dir / "sub");
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(dir / name) << text;
  };
  const auto of = [&](const char* name) {
    Diagnostics diagnostics;
    const Recipe r =
        plan::load_recipe(interchange::model_source(), (dir / name).string(), {}, diagnostics);
    return std::pair{r, diagnostics.text(Severity::error)};
  };
  write("a.yaml",
        kMinimal + "optimizer: {lr: 1e-3, weight_decay: 0.5}\nmodel: {num_kv_heads: 4}\n");
  write("b.yaml", "optimizer: {eps: 1e-6, lr: 5e-3}\n");
  write("sub/child.yaml",
        "base: [../a.yaml, ../b.yaml]\noptimizer: {lr: 2e-3}\nmodel: {num_query_groups: 2}\n");
  const auto [child, none] = of("sub/child.yaml");
  REQUIRE(none.empty());
  REQUIRE(child.optimizer.lr == 2e-3);
  REQUIRE(child.optimizer.weight_decay == 0.5);
  REQUIRE(child.optimizer.eps == 1e-6);
  REQUIRE(child.model.num_query_groups == 2);  // another spelling in a base is not a conflict
  REQUIRE(child.train.run_dir == "runs/child");

  write("x.yaml", "base: y.yaml\n");
  write("y.yaml", "base: x.yaml\n");
  REQUIRE_THAT(of("x.yaml").second, Contains("y.yaml:1:7") && Contains("based on itself"));
  write("gone.yaml", "base: nowhere.yaml\n");
  REQUIRE_THAT(of("gone.yaml").second, Contains("gone.yaml:1:7") && Contains("no such file"));
  write("typo.yaml", "base: bad.yaml\nmodel: {x_x: 1}\n");
  write("bad.yaml", kMinimal + "optimizer: {lr: fast}\n");
  REQUIRE_THAT(of("typo.yaml").second, Contains("bad.yaml:2") && Contains("typo.yaml:2"));
  write("map.yaml", "base: {a: 1}\n");
  REQUIRE_THAT(of("map.yaml").second, Contains("path of a recipe"));
  fs::remove_all(dir);
}

TEST_CASE("only the recipe that is started may name a command") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name) << text;
  };
  const auto of = [&](const char* name, const std::vector<std::string>& settings = {}) {
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe(interchange::model_source(), (folder / name).string(),
                                       settings, diagnostics);
    return std::pair{r.launch.on_event, diagnostics.text(Severity::error)};
  };
  const std::vector<std::string> words{"notify", "--now"};
  write("own.yaml", kMinimal + "launch: {on_event: [notify, --now]}\n");
  CHECK(of("own.yaml") == std::pair(words, std::string()));
  write("plain.yaml", kMinimal);
  CHECK(of("plain.yaml", {"launch.on_event=[notify, --now]"}) == std::pair(words, std::string()));
  write("child.yaml", "base: own.yaml\n");
  write("grandchild.yaml", "base: [plain.yaml, child.yaml]\nlaunch: {on_event: [mine]}\n");
  for (const char* name : {"child.yaml", "grandchild.yaml"}) {
    INFO(name);
    CHECK_THAT(of(name).second, Contains("own.yaml") && Contains("launch.on_event") &&
                                    Contains("cannot name a command"));
    // Not even if the command line replaces it: the base is not to be trusted.
    CHECK_FALSE(of(name, {"launch.on_event=[mine]"}).second.empty());
  }
  write("none.yaml", kMinimal + "launch: {on_event: null}\n");
  write("of_none.yaml", "base: none.yaml\nlaunch: {on_event: [notify, --now]}\n");
  CHECK(of("of_none.yaml") == std::pair(words, std::string()));
}

TEST_CASE("flags of other systems that say no, or say it in other words") {
  REQUIRE(load(kMinimal + "model: {gated_linear_unit: false}\n").model.activation ==
          Activation::gelu);
  REQUIRE(load(kMinimal + "model: {gated-linear-unit: true, hidden_act: silu}\n").model.gated());
  for (const char* both : {"gated_linear_unit: false, hidden_act: gelu_new",
                           "hidden_act: gelu_new, gated_linear_unit: false"})
    REQUIRE(load(kMinimal + "model: {" + both + "}\n").model.activation == Activation::gelu_tanh);
  REQUIRE_FALSE(load(kMinimal + "optimizer: {no_master_weights: true}\n").optimizer.master_weights);
  REQUIRE_THAT(errors(kMinimal + "model: {gated_linear_unit: true, hidden_act: gelu}\n"),
               Contains("set twice"));
}

TEST_CASE("geglu is a gate by gelu, with which a switch for SwiGLU does not agree") {
  REQUIRE(load(kMinimal + "model: {activation: geglu}\n").model.gated());
  REQUIRE(
      load(kMinimal + "model: {activation: geglu, gated_linear_unit: true}\n").model.activation ==
      Activation::geglu);
  REQUIRE_THAT(errors(kMinimal + "model: {activation: geglu, swiglu: true}\n"),
               Contains("set twice"));
  REQUIRE_THAT(errors(kMinimal + "model: {swiglu: true, activation: geglu}\n"),
               Contains("set twice"));
}

TEST_CASE("gelu is the form by erf, and GPT-2's own is the tanh form") {
  const auto activation = [](const std::string& text) {
    return load(kMinimal + "model: {" + text + "}\n").model.activation;
  };
  REQUIRE(activation("hidden_act: gelu") == Activation::gelu);
  REQUIRE(activation("architecture: gpt2") == Activation::gelu_tanh);
  REQUIRE(activation("architecture: gpt2, activation: gelu") == Activation::gelu);
  for (const char* tanh : {"gelu_tanh", "gelu_new", "gelu_pytorch_tanh"})
    REQUIRE(activation(std::string("activation_function: ") + tanh) == Activation::gelu_tanh);
}

TEST_CASE("attention_bias adds the output projection's bias, add_qkv_bias does not") {
  const auto model = [](const std::string& text) {
    return load(kMinimal + "model: {" + text + "}\n").model;
  };
  REQUIRE_FALSE(model("attention_bias: false").qkv_bias());
  REQUIRE(model("attention_bias: true").qkv_bias());
  REQUIRE(model("attention_bias: true").proj_bias());
  REQUIRE_FALSE(model("attention_bias: true").add_bias_linear);
  REQUIRE_FALSE(model("add_qkv_bias: true").proj_bias());
  REQUIRE(model("architecture: qwen2, attention_bias: false").qkv_bias());
}

TEST_CASE("only bf16 weights without fp32 ones are rounded stochastically") {
  const std::string bf16 = kMinimal + "mixed_precision: bf16_mixed\n";
  REQUIRE_FALSE(load(bf16).optimizer.rounds_stochastically());
  REQUIRE(load(bf16 + "optimizer: {master_weights: false}\n").optimizer.rounds_stochastically());
  REQUIRE_FALSE(load(bf16 + "optimizer: {master_weights: false, stochastic_rounding: false}\n")
                    .optimizer.rounds_stochastically());
  REQUIRE_THAT(errors(bf16 + "optimizer: {stochastic_rounding: true}\n"),
               Contains("optimizer.stochastic_rounding") && Contains("master_weights: false"));
  REQUIRE_THAT(errors(bf16 + "optimizer: {moments: bf16, stochastic_rounding: false}\n"),
               Contains("optimizer.moments") && Contains("moments: fp32"));
  load(bf16 + "optimizer: {moments: bf16}\n");
  REQUIRE_THAT(errors(kMinimal + "mixed_precision: fp32\noptimizer: {master_weights: false}\n"),
               Contains("optimizer.master_weights") && Contains("bf16_mixed"));
}

TEST_CASE("a run that resumes takes the settings of the model.from folder from the saved recipe") {
  const TemporaryFolder temporary;
  const auto read = [](const std::string& text, const std::string& saved = "") {
    Diagnostics diagnostics;
    const auto r =
        read_recipe_text(interchange::model_source(), text, "r.yaml", {}, diagnostics, saved);
    INFO(diagnostics.text(Severity::error));
    REQUIRE(r);
    REQUIRE_FALSE(diagnostics.has_errors());
    return *r;
  };
  const auto shown = [](const Recipe& r, const std::string& path) {
    return find_row(path)->show(r);
  };
  const std::string from = "model:\n  from: " + temporary.path.string() + "\n";
  const auto write = [&](const std::string& config) {
    std::ofstream(temporary / "config.json") << config;
  };
  write(R"({"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_local_experts": 5, "rms_norm_eps": 0.25,
    "initializer_range": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 3}})");
  const Recipe whole = read(from);
  const Recipe first =
      read(from +
           "  hidden_dropout: 0.1\n  embedding_dropout: 0.2\n  attention_dropout: 0.3\n"
           "  moe: {load_balancing_type: aux_loss, aux_loss_coeff: 0.01, z_loss_coeff: 0.5, "
           "router_bias_update_rate: 0.5, expert_capacity_factor: 2, token_drop_policy: position, "
           "pad_expert_input_to_capacity: true, token_dispatcher: all_gather}\n");
  std::filesystem::remove(temporary / "config.json");
  const Recipe again = read(from, print_recipe(first));
  for (const SchemaRow& row : schema_rows()) {
    INFO(row.path);
    CHECK(row.show(again) == row.show(whole));
  }
  CHECK((again.model.hidden_size == 64 && again.model.moe.num_experts == 5));
  CHECK(again.model.rope_scaling.factor == 3);
  CHECK(again.model.init_method_std == 0.5);  // which comes from the folder, not from a recipe
  CHECK(shown(again, "model.hidden_dropout") == "0");

  // GPT-2's dropout is the folder's until a recipe says otherwise.
  write(R"({"model_type": "gpt2", "attn_pdrop": 0.25, "embd_pdrop": 0.5})");
  const Recipe gpt2 = read(from + "  attention_dropout: 0\n");
  std::filesystem::remove(temporary / "config.json");
  const Recipe further = read(from, print_recipe(gpt2));
  CHECK(shown(further, "model.hidden_dropout") == "0.1");
  CHECK(shown(further, "model.embedding_dropout") == "0.5");
  CHECK(shown(further, "model.attention_dropout") == "0");
  CHECK(read(from, print_recipe(further)).model.embedding_dropout == 0.5);
}

}  // namespace recipe_load_test
