// Recipes and overrides that are broken at random: every one is either loaded or refused with a
// message, never a crash, a hang or an exception. The mutations are a function of the iteration, so
// a failure can be repeated.
#include <ctime>

#include <catch2/catch.hpp>

#include "base/rng.h"
#include "interchange/model_source.h"
#include "plan/layout.h"
#include "plan/load_recipe.h"
#include "plan/overlap.h"
#include "plan/rules/unsupported.h"
#include "recipe/schema/schema.h"

namespace recipe_fuzz_test {

using namespace mtrain;
using namespace mtrain::recipe;

namespace {

const std::vector<std::string> kSeeds{
    "model: {architecture: qwen3, num_layers: 4, num_query_groups: 4, moe: 8}\n"
    "dataset:\n  train: [a, 'b']\n  seq_length: 1_024\n"
    "distributed:\n  tp_size: 2\n  pp_size: 2\n  cp_size: 2\n  ep_size: 2\n"
    "  pipeline: {pp_schedule: dualpipev, layout: 'E(t|)*3tL'}\n"
    "  cp_comm_type: a2a+p2p\n  hierarchical_context_parallel_sizes: [2, 1]\n"
    "ddp: {bucket_size: auto}\n",
    "a: &x {lr: 1e-4}\noptimizer: *x\nbase: ${env:HOME}\n"
    "train: {steps: '${model.num_layers}', run_dir: \"a${train.steps}b\"}\n"
    "comm_overlap: {tp_comm_overlap_cfg: {qkv_fprop: {num_sm: 4}, fc2_fprop: {method: pipeline}}}\n"
    "recompute: full\nlaunch: {env: {A: 1, B: x}}\n",
    "optimizer:\n    <<: {lr: .5}\n    betas: [0.9, 0.95]\ncfg:\n  ddp: {no_check_for_nan_in_grad: "
    "on}\n"
    "dist_env: {timeout_minutes: 1}\nstep_scheduler: {max_steps: 0x10}\n? [a]\n: b\n"};

const std::vector<std::string> kPieces{"{",
                                       "}",
                                       "[",
                                       "]",
                                       ":",
                                       ": ",
                                       "\n",
                                       "\n  ",
                                       "- ",
                                       "&a ",
                                       "*a",
                                       "${",
                                       "}",
                                       "${model.num_layers}",
                                       "!!int ",
                                       "|",
                                       ">",
                                       "\t",
                                       std::string(1, '\0'),
                                       "\xff",
                                       "-1",
                                       "1e999",
                                       "99999999999999999999",
                                       "0",
                                       "none",
                                       "~",
                                       "'",
                                       "\"",
                                       "#",
                                       "<<",
                                       "---\n",
                                       "%",
                                       "@",
                                       "model:",
                                       "tp_size: 65536",
                                       "[[[[[[[["};

// Returns a number below `n`, the k-th of this iteration.
struct Dice {
  uint64_t iteration, k = 0;
  size_t below(size_t n) { return size_t(uniform_below(17, iteration * 64 + k++ % 64, n)); }
};

std::string mutate(std::string text, Dice& dice) {
  for (size_t i = 0, n = 1 + dice.below(5); i < n; ++i) {
    const size_t at = dice.below(text.size() + 1), length = dice.below(12);
    switch (dice.below(4)) {
      case 0: text.erase(at, length); break;
      case 1: text.insert(at, kPieces[dice.below(kPieces.size())]); break;
      case 2: text.insert(at, text.substr(dice.below(text.size() + 1), length)); break;
      case 3:
        if (at < text.size()) text[at] = char(dice.below(256));
        break;
    }
  }
  return text;
}

}  // namespace

TEST_CASE("a broken recipe is refused, not fatal") {
  const auto& rows = schema_rows();
  int loaded = 0, refused = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    Dice dice{i};
    const std::string text = mutate(kSeeds[dice.below(kSeeds.size())], dice);
    std::vector<std::string> overrides;
    for (size_t k = dice.below(3); k > 0; --k)
      overrides.push_back(mutate(
          rows[dice.below(rows.size())].path + "=" + kPieces[dice.below(kPieces.size())], dice));
    INFO(i << ":\n" << text);
    Diagnostics diagnostics;
    const int64_t world = int64_t(dice.below(70));
    const Recipe r = plan::load_recipe_text(interchange::model_source(), text, "fuzz/r.yaml",
                                            overrides, diagnostics, world);
    if (diagnostics.has_errors()) {
      ++refused;
      for (const auto& p : diagnostics.sorted()) {
        REQUIRE(p.location.known());
        REQUIRE_FALSE(p.reason.empty());
      }
    } else {
      ++loaded;
      REQUIRE_FALSE(resolve_overlap(r, plan::layout_of(r, world)).table.empty());
      plan::check_supported(r, diagnostics);
      REQUIRE_FALSE(print_recipe(r).empty());
    }
  }
  REQUIRE(refused > 1000);
  REQUIRE(loaded + refused == 4000);
}

TEST_CASE("every field refuses or takes odd values") {
  const std::string base = "dataset: {train: x}\n";
  for (const auto& row : schema_rows()) {
    std::vector<std::string> values{
        "",     "none", "auto", "-1", "0",      "1",  "2",      "65536", "9223372036854775807",
        "1e18", "true", "x",    "[]", "[1, 2]", "{}", "{a: 1}", "'1'",   "${train.steps}",
        "*a"};
    for (const auto& word : row.ops->info().choices) values.emplace_back(word);
    for (const auto& value : values) {
      INFO(row.path << "=" << value);
      Diagnostics diagnostics;
      const Recipe r = plan::load_recipe_text(interchange::model_source(), base, "r.yaml",
                                              {row.path + "=" + value}, diagnostics, 0);
      if (diagnostics.has_errors()) continue;
      Diagnostics again;
      const Recipe same = plan::load_recipe_text(interchange::model_source(), print_recipe(r),
                                                 "printed.yaml", {}, again, 0);
      INFO(again.text(Severity::error));
      REQUIRE_FALSE(again.has_errors());
      REQUIRE(print_recipe(same, false) == print_recipe(r, false));
      REQUIRE(resolve_overlap(same, plan::layout_of(same, 0)).bucket_size ==
              resolve_overlap(r, plan::layout_of(r, 0)).bucket_size);
    }
  }
}

TEST_CASE("large files, and files that are not recipes, are refused in an instant") {
  std::string keys, long_key(1 << 19, 'k'), wide = "model: {", items = "dataset: {train: [";
  for (int i = 0; i < 9000; ++i) keys += "key_number_" + std::to_string(i) + ": 1\n";
  for (int i = 0; i < 9000; ++i) wide += "k" + std::to_string(i) + ": 1, ";
  for (int i = 0; i < 15000; ++i) items += "x, ";
  for (const auto& text :
       {keys, long_key + ": 1\n", wide + "}\n", items + "x]}\noptimizer: {lr: x}\n",
        std::string(1 << 20, '{'), "a: \"" + std::string(1 << 19, '$') + "\"\n"}) {
    const std::clock_t start = std::clock();  // of this process: others may keep the cores busy
    Diagnostics diagnostics;
    plan::load_recipe_text(interchange::model_source(), text, "r.yaml", {}, diagnostics);
    const double took = double(std::clock() - start) / CLOCKS_PER_SEC;
    REQUIRE(diagnostics.has_errors());
    // Each takes some tens of milliseconds; the bound catches work that grows with the square of
    // the size.
    REQUIRE(took < 10.0);
  }
}

TEST_CASE("a layout of 16384 ranks is checked in an instant") {
  const std::string text =
      "model: {num_layers: 126, hidden_size: 16384, num_attention_heads: 128, num_query_groups: "
      "8}\n"
      "dataset: {train: x, seq_length: 8192}\ntrain: {global_batch_size: 2048}\n"
      "distributed: {tp_size: 8, pp_size: 16, pipeline: {}}\n";
  const std::clock_t start = std::clock();  // of this process: others may keep the cores busy
  Diagnostics diagnostics;
  const Recipe r =
      plan::load_recipe_text(interchange::model_source(), text, "r.yaml", {}, diagnostics, 16384);
  const double took = double(std::clock() - start) / CLOCKS_PER_SEC;
  INFO(diagnostics.text(Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  REQUIRE(plan::layout_of(r, 16384).dp == 128);
  // Loading takes about a millisecond; the bound only catches work that grows with the ranks.
  REQUIRE(took < 2.0);
}

}  // namespace recipe_fuzz_test
