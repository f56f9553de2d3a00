// Tests values that are references, YAML tags, blends and windows; and that values of variables for
// the ranks are never written.
#include <cstdlib>
#include <fstream>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "plan/saved_recipe.h"
#include "recipe/load/raw_settings.h"
#include "recipe/schema/schema.h"
#include "recipe_cases.h"
#include "test/support/temporary_folder.h"

namespace recipe_references_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

Recipe loaded(const std::string& text, const Overrides& set = {}) {
  Diagnostics diagnostics;
  const Recipe r =
      plan::load_recipe_text(interchange::model_source(), kBase + text, "r.yaml", set, diagnostics);
  INFO(text << listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  return r;
}

// Returns the width of a ready recipe's feed-forward network.
std::string ffn_of_ready(const std::string& name) {
  Diagnostics diagnostics;
  const auto r = read_recipe(interchange::model_source(),
                             MTRAIN_SOURCE_DIR "/recipes/" + name + ".yaml", {}, diagnostics);
  REQUIRE(r);
  return find_row("model.ffn_hidden_size")->show(*r);
}

std::string wrong(const std::string& text, const Overrides& set = {}) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + text, "r.yaml", set, diagnostics);
  return diagnostics.text(Severity::error);
}

std::string run_dir(const std::string& value) {
  return loaded("train.run_dir: '" + value + "'\n").train.run_dir;
}

}  // namespace

TEST_CASE("the default of a reference may be a reference") {
  unsetenv("MTRAIN_TEST_NONE");
  setenv("MTRAIN_TEST_B", "b", 1);
  CHECK(run_dir("${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_B}/c}") == "b/c");
  CHECK(run_dir("x/${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_B}}/y") == "x/b/y");
  CHECK(run_dir("${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_NONE,d}}") == "d");
  CHECK(run_dir("${env:MTRAIN_TEST_NONE,s${train.seed}}") == "s1234");
  // An unused default may refer to something that does not exist.
  CHECK(run_dir("${env:MTRAIN_TEST_B,${env:MTRAIN_TEST_NONE}}") == "b");
  CHECK_THAT(wrong("train.run_dir: '${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_NONE}}'\n"),
             Contains("MTRAIN_TEST_NONE is not set"));
  CHECK_THAT(wrong("train.run_dir: '${env:${env:MTRAIN_TEST_B}}'\n"), Contains("reference itself"));
  CHECK_THAT(wrong("train.run_dir: '${train.${env:MTRAIN_TEST_B}}'\n"),
             Contains("reference itself"));
  CHECK_THAT(wrong("train.run_dir: '${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_B}'\n"),
             Contains("closing brace"));
}

TEST_CASE("variables in other notations get a hint") {
  for (const char* value :
       {"${oc.env:HOME}", "${oc.env:HOME}/x", "$HOME", "$HOME/data", "/a/$HOME", "x:$HOME"})
    for (const char* quote : {"'", "\""})
      CHECK_THAT(wrong(fmt::format("train.run_dir: {1}{0}{1}\n", value, quote)),
                 Contains("train.run_dir") && Contains("${env:HOME}"));
  CHECK_THAT(wrong("train.run_dir: $HOME/data\n"), Contains("write ${env:HOME}"));
  CHECK_THAT(wrong("train.run_dir: ${oc.env:HOME,/tmp}\n"), Contains("write ${env:HOME,/tmp}"));
  CHECK_THAT(wrong("dataset.validation: [a, $DATA/b]\n"), Contains("write ${env:DATA}"));
  CHECK(run_dir("a$1/b$") == "a$1/b$");
}

TEST_CASE("a base may be named by a variable") {
  const TemporaryFolder folder;
  std::ofstream(folder / "below.yaml") << kBase << "optimizer.lr: 0.5\n";
  setenv("MTRAIN_TEST_BASE", folder.path.c_str(), 1);
  setenv("MTRAIN_TEST_NAME", "below", 1);
  unsetenv("MTRAIN_TEST_NONE");
  const auto of = [&](const std::string& base) {
    std::ofstream(folder / "r.yaml") << "base: " << base << "\n";
    Diagnostics diagnostics;
    const auto r =
        read_recipe(interchange::model_source(), (folder / "r.yaml").string(), {}, diagnostics);
    return diagnostics.has_errors() ? listed(diagnostics) : find_row("optimizer.lr")->show(*r);
  };
  for (const char* base : {"${env:MTRAIN_TEST_BASE}/below.yaml", "['${env:MTRAIN_TEST_NAME}.yaml']",
                           "${env:MTRAIN_TEST_NONE,below.yaml}",
                           "${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_NAME}.yaml}"})
    CHECK(of(base) == "0.5");
  CHECK_THAT(of("${env:MTRAIN_TEST_NONE}/x.yaml"),
             Contains("base") && Contains("MTRAIN_TEST_NONE is not set"));
  CHECK_THAT(of("${train.run_dir}/x.yaml"), Contains("variables alone"));
  CHECK_THAT(of("$HOME/x.yaml"), Contains("write ${env:HOME}"));
}

TEST_CASE("a base may be the name of a ready recipe, and files near the recipe win") {
  const TemporaryFolder folder;
  const std::string ready = ffn_of_ready("llama3_8b");
  const auto of = [&](const std::string& file, const std::string& base) {
    std::ofstream(folder / file) << "base: " << base << "\n";
    Diagnostics diagnostics;
    const auto r =
        read_recipe(interchange::model_source(), (folder / file).string(), {}, diagnostics);
    return diagnostics.has_errors() ? listed(diagnostics)
                                    : find_row("model.ffn_hidden_size")->show(*r);
  };
  for (const char* base : {"llama3_8b", "llama3-8b", "llama3_8b.yaml", "[quickstart, llama3_8b]"})
    CHECK(of("r.yaml", base) == ready);
  CHECK(of("llama3_8b.yaml", "llama3_8b") == ready);
  CHECK_THAT(of("r.yaml", "llama3_900b"), Contains("no such file"));
  CHECK_THAT(of("r.yaml", "./llama3_8b"), Contains("no such file"));
  std::ofstream(folder / "llama3_8b.yaml") << kBase;
  CHECK(of("r.yaml", "llama3_8b") == "704");
  CHECK(of("r.yaml", "llama3_8b.yaml") == "704");
}

TEST_CASE("YAML tags say how a value is read") {
  CHECK(loaded("optimizer: {lr: !!float 2e-5}\n").optimizer.lr == 2e-5);
  CHECK(loaded("optimizer: {lr: !!float '2e-5'}\n").optimizer.lr == 2e-5);
  CHECK(loaded("optimizer: {betas: !!seq [!!float 0.5, !!float 0.75]}\n").optimizer.betas[1] ==
        0.75);
  CHECK(loaded("train.steps: !!int 7\n").train.steps == 7);
  CHECK(loaded("train.steps: !!int \"7\"\n").train.steps == 7);
  CHECK(loaded("debug: !!map {strict: !!bool yes}\n").debug.strict);
  CHECK(loaded("train.run_dir: !!str 7\n").train.run_dir == "7");
  CHECK(loaded("debug: {trace: !!str none}\n").debug.trace == "none");
  CHECK_FALSE(loaded("debug: {trace: !!null x}\n").debug.trace);
  CHECK(loaded("model.window_size: !!python/tuple [3, 0]\n").model.window_size == 4);
  CHECK(loaded("", {"optimizer.lr=!!float 2e-5"}).optimizer.lr == 2e-5);
  for (const auto& [value, gist] : {std::pair{"!!int seven", "tag !!int"},
                                    {"!!int 7.5", "tag !!int"},
                                    {"!!float x", "tag !!float"},
                                    {"!!bool 3", "tag !!bool"},
                                    {"!!binary Zm9v", "tag !!binary"},
                                    {"!mine 7", "tag !mine"},
                                    {"!!timestamp 2001-01-01", "tag !!timestamp"},
                                    {"!!set {a}", "tag !!set"},
                                    {"!!python/object:os.x [1]", "tag !!python/object"}})
    CHECK_THAT(wrong(fmt::format("train.steps: {}\n", value)), Contains(gist));
  CHECK_THAT(wrong("", {"train.steps=!mine 7"}), Contains("!mine"));
}

TEST_CASE("a list of data may have the share of each") {
  using Paths = std::vector<std::string>;
  for (const char* text :
       {"data_path: [0.25, a, 0.75, b]", "paths: [0.25, a, 0.75, b]", "train: [0.25, a, 0.75, b]",
        "data_path: 0.25 a 0.75 b", "data_path: '0.25  a 0.75 b'",
        "data_path: ['0.25', a, '0.75', b]", "data_path: [2.5e-1, a, 7.5e-1, b]"}) {
    Diagnostics diagnostics;
    const auto r =
        read_recipe_text(interchange::model_source(), fmt::format("dataset: {{{}}}\n", text),
                         "r.yaml", {}, diagnostics);
    INFO(text << listed(diagnostics));
    REQUIRE(r);
    CHECK_FALSE(diagnostics.has_errors());
    CHECK(r->dataset.train == Paths{"a", "b"});
    CHECK(r->dataset.train_weights == std::vector<double>{0.25, 0.75});
  }
  CHECK(loaded("", {"dataset.train=[1, x/y]"}).dataset.train == Paths{"x/y"});
  CHECK(loaded("dataset.valid: [0.5, v, 0.5, w]\n").dataset.validation_weights.size() == 2);
  // Prefixes that are not a blend stay unchanged.
  CHECK(loaded("", {"dataset.train=[a, b, c]"}).dataset.train.size() == 3);
  CHECK(loaded("", {"dataset.train='with blank'"}).dataset.train == Paths{"with blank"});
  for (const Paths& paths : {Paths{"12"}, Paths{"12", "b"}, Paths{"12 b"}}) {
    const std::string list = fmt::format("dataset.train=['{}']", fmt::join(paths, "', '"));
    CHECK(loaded("", {list}).dataset.train == paths);
    Diagnostics diagnostics;
    const std::string printed = print_recipe(loaded("", {list}));
    const auto again =
        read_recipe_text(interchange::model_source(), printed, "printed.yaml", {}, diagnostics);
    REQUIRE(again);
    CHECK(again->dataset.train == paths);
  }
  for (const char* value :
       {"[0.25, a, b]", "[a, 0.75, b, 0.25]", "[0.25, a, 0.5, 0.25]", "0.25 a b", "[0.25]"})
    CHECK_THAT(wrong("", {fmt::format("dataset.data_path={}", value)}),
               Contains("not the share of a prefix"));
  CHECK_THAT(wrong("", {"dataset.train=[0, a, 1, b]"}), Contains("out of range"));
  CHECK_THAT(wrong("dataset.data_path: [1, x]\ndataset.train_weights: [3]\n"), Contains("twice"));
}

TEST_CASE("a window of Megatron is the tokens before, and the token itself") {
  const auto window = [](const std::string& value) {
    return loaded("", {"model.window_size=" + value}).model.window_size.value_or(0);
  };
  CHECK(window("[3, 0]") == 4);
  CHECK(window("(127, 0)") == 128);
  CHECK(window("'127,0'") == 128);
  CHECK(window("[3, -1]") == 4);
  CHECK(window("[0, 0]") == 1);
  CHECK(window("[-1, 0]") == 0);
  CHECK(window("[-1, -1]") == 0);
  CHECK(window("4") == 4);
  CHECK(loaded("model.sliding_window: [3, 0]\n").model.window_size == 4);
  for (const char* value : {"[3, 1]", "[3]", "[3, 0, 0]", "[a, 0]", "[-2, 0]", "'3,x'"})
    CHECK_THAT(wrong("", {fmt::format("model.window_size={}", value)}),
               Contains("model.window_size"));
}

TEST_CASE("values of variables for the ranks are written as their references, or by name alone") {
  setenv("MTRAIN_TEST_SECRET", "hunter2", 1);
  unsetenv("MTRAIN_TEST_NONE");
  const std::string variables =
      "{A: '${env:MTRAIN_TEST_SECRET}', B: hunter2, C: '${env:MTRAIN_TEST_NONE,hunter2}', "
      "D: 'user:hunter2@${env:MTRAIN_TEST_SECRET}', E: "
      "'${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_SECRET}}'}";
  for (const char* spelling : {"launch.env", "env_vars"}) {
    const Recipe r = loaded(fmt::format("{}: {}\n", spelling, variables));
    CHECK(r.launch.variables().at("A") == "hunter2");
    CHECK(r.launch.variables().at("B") == "hunter2");
    CHECK(r.launch.variables().at("D") == "user:hunter2@hunter2");
    for (const bool origins : {false, true}) {
      const std::string printed = print_recipe(r, origins);
      CHECK_THAT(printed, !Contains("hunter2"));
      CHECK_THAT(printed, Contains("A: '${env:MTRAIN_TEST_SECRET}', B: null, "
                                   "C: '${env:MTRAIN_TEST_NONE}', D: null, "
                                   "E: '${env:MTRAIN_TEST_NONE,${env:MTRAIN_TEST_SECRET}}'"));
    }
  }
  // A printed recipe marks variables that have no value.
  Diagnostics diagnostics;
  const Recipe r = loaded("launch.env: {MTRAIN_TEST_PLAIN: hunter2}\n");
  plan::load_recipe_text(interchange::model_source(), print_recipe(r), "printed.yaml", {},
                         diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  CHECK_THAT(diagnostics.text(Severity::warning), Contains("MTRAIN_TEST_PLAIN has no value"));
}

TEST_CASE("no message quotes the value of a variable for the ranks") {
  for (const char* set :
       {"launch.env=hunter2", "launch.env=[hunter2]", "launch.env={A: [hunter2]}",
        "launch.env={A: hunter2", "env_vars={A: hunter2, B: {c: hunter2}}", "launch={env: hunter2}",
        "launch.env={CUDA_DEVICE_MAX_CONNECTIONS: hunter2}"}) {
    const std::string text = wrong("", {set});
    INFO(set);
    CHECK_THAT(text, !Contains("hunter2") && Contains("the setting `"));
  }
  CHECK_THAT(wrong("launch: {env: hunter2}\n"), !Contains("hunter2") && Contains("launch.env"));
  for (const char* set : {"launch.env.A=x", "env_vars.A=x", "env.A=x", "+launch.env.A=x"}) {
    INFO(set);
    CHECK(holds_secrets(set));
  }
  CHECK_FALSE(holds_secrets("train.steps=1"));
}

TEST_CASE("neither ranks nor a resume compare variables for the ranks") {
  const TemporaryFolder folder;
  setenv("MTRAIN_TEST_SECRET", "a", 1);
  const std::string saved =
      print_recipe(loaded("launch.env: {A: '${env:MTRAIN_TEST_SECRET}', B: x}\n"));
  std::ofstream(folder / "recipe.yaml") << saved;
  const plan::RunPlan plan = plan::make_plan(loaded("launch.env: {MTRAIN_TEST_OWN: x}\n"), 1, 512);
  CHECK_THAT(plan.text.recipe, !Contains("MTRAIN_TEST_OWN"));
  CHECK_THAT(plan.text.recipe_with_origins, Contains("MTRAIN_TEST_OWN: null"));
  unsetenv("MTRAIN_TEST_SECRET");
  CHECK(plan::resume_differences(interchange::model_source(), {folder / "recipe.yaml"},
                                 print_recipe(loaded("")))
            .empty());
}

TEST_CASE("a printed value that came by a reference says by which") {
  setenv("MTRAIN_TEST_B", "b", 1);
  const std::string printed = print_recipe(
      loaded("train.run_dir: x/${env:MTRAIN_TEST_B}\ntrain.log_every: ${validation.steps}\n"));
  CHECK_THAT(printed, Contains("x/b ") && Contains("# recipe, by x/${env:MTRAIN_TEST_B}\n"));
  CHECK_THAT(printed, Contains("# recipe, by ${validation.steps}\n"));
}

}  // namespace recipe_references_test
