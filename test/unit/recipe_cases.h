// Checks for the rules of recipes: the diagnostics that settings on a small recipe must give.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include "interchange/model_source.h"
#include "plan/layout.h"
#include "plan/load_recipe.h"
#include "plan/overlap.h"

namespace recipe_cases {

using namespace mtrain;
using namespace mtrain::recipe;

inline const char* kBase =
    "model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, num_query_groups: 4,\n"
    "        ffn_hidden_size: 704, vocab_size: 512}\n"
    "dataset: {train: x, seq_length: 1024}\n"
    "train: {global_batch_size: 32, micro_batch_size: 1}\n";

using Overrides = std::vector<std::string>;

// A case: the overrides that it sets on the small recipe, and the number of ranks.
struct Setting {
  std::string what = "";
  int64_t world = 1;
  Overrides set = {};
};

inline Diagnostics check(int64_t world, const Overrides& overrides) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase, "base.yaml", overrides, diagnostics,
                         world);
  return diagnostics;
}

inline std::string listed(const Diagnostics& diagnostics) {
  std::string all;
  for (const auto& p : diagnostics.sorted()) all += p.str() + "\n";
  return all;
}

inline int count(const Diagnostics& diagnostics, Severity severity) {
  return int(std::ranges::count_if(diagnostics.sorted(),
                                   [&](const auto& p) { return p.severity == severity; }));
}

// Some diagnostic of that severity is about `field`, and its reason contains `gist`.
inline void expect_diagnostic(const Setting& s, Severity severity, std::string_view field,
                              std::string_view gist) {
  const Diagnostics diagnostics = check(s.world, s.set);
  INFO(s.what << "\n" << listed(diagnostics));
  CHECK(std::ranges::any_of(diagnostics.sorted(), [&](const auto& p) {
    return p.severity == severity && p.field == field && p.reason.find(gist) != std::string::npos;
  }));
  // A single violated rule gives a single error: no rule repeats the error of another.
  CHECK(count(diagnostics, Severity::error) == (severity == Severity::error ? 1 : 0));
}
inline void expect_error(const Setting& s, std::string_view field, std::string_view gist) {
  expect_diagnostic(s, Severity::error, field, gist);
}
inline void expect_warning(const Setting& s, std::string_view field, std::string_view gist) {
  expect_diagnostic(s, Severity::warning, field, gist);
}
// mtrain reports its choice or adaptation at `field`.
inline void expect_resolved(const Setting& s, std::string_view field, std::string_view gist) {
  expect_diagnostic(s, Severity::resolved, field, gist);
}

inline void expect_accepts(const Setting& s) {
  const Diagnostics diagnostics = check(s.world, s.set);
  INFO(s.what << "\n" << listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
}
// The rules accept the setting without a warning.
inline void expect_no_warning(const Setting& s) {
  const Diagnostics diagnostics = check(s.world, s.set);
  INFO(s.what << "\n" << listed(diagnostics));
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(count(diagnostics, Severity::warning) == 0);
}

inline Overrides pipeline(const Overrides& more) {
  Overrides o{"distributed.pp_size=4", "distributed.pipeline={}"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}
inline Overrides interleaved(const Overrides& more) {
  Overrides o{"distributed.pp_size=4", "distributed.pipeline.pp_schedule=interleaved_1f1b",
              "distributed.vpp_size=2"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}
inline Overrides experts(const Overrides& more) {
  Overrides o{"model.moe.num_experts=8", "distributed.ep_size=4"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}
inline Overrides megatron(Overrides o) {
  o.push_back("distributed.strategy=megatron_ddp");
  return o;
}
// A flag of the fine-grained 1F1B.
inline Overrides fine(const char* flag) {
  return interleaved({std::string("comm_overlap.overlap_p2p_") + flag});
}

// The small recipe with these settings and the lines `more`, which must be without an error.
inline Recipe recipe_of(int64_t world, const Overrides& overrides, const std::string& more = "") {
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), kBase + more, "base.yaml",
                                          overrides, diagnostics, world);
  INFO(diagnostics.text(Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

}  // namespace recipe_cases
