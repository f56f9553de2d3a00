// Cases of recipe rules: overrides on a small recipe, and the problem they must give.
#pragma once
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "plan/layout.h"
#include "plan/load_recipe.h"
#include "plan/overlap.h"

namespace recipe_cases {

using namespace mtrain;

inline const char* kBase =
    "model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, num_query_groups: 4,\n"
    "        ffn_hidden_size: 704, vocab_size: 512}\n"
    "dataset: {train: x, seq_length: 1024}\n"
    "train: {global_batch_size: 32, micro_batch_size: 1}\n";

using Overrides = std::vector<std::string>;

struct Case {
  const char* what;
  int64_t world;
  Overrides overrides;
  Severity severity;
  const char* field;  // null: no problem of that severity at all
  const char* part;   // of the reason
};

inline Problems check(int64_t world, const Overrides& overrides) {
  Problems problems;
  load_recipe_text(kBase, "base.yaml", overrides, problems, world);
  return problems;
}

inline void run(const std::vector<Case>& cases) {
  for (const auto& c : cases) {
    const Problems problems = check(c.world, c.overrides);
    std::string all;
    for (const auto& p : problems.sorted()) all += p.str() + "\n";
    INFO(c.what << "\n" << all);
    int of_severity = 0;
    bool found = false;
    for (const auto& p : problems.sorted()) {
      if (p.severity == Severity::error && c.severity != Severity::error) FAIL("an error besides");
      if (p.severity != c.severity) continue;
      ++of_severity;
      if (!c.field || p.field != c.field) continue;
      found = found || p.reason.find(c.part) != std::string::npos;
    }
    if (c.field) {
      CHECK(found);
      // Violated alone: one error, so that no rule repeats another's complaint.
      if (c.severity == Severity::error) CHECK(of_severity == 1);
    } else {
      CHECK(of_severity == 0);
    }
  }
}

inline constexpr auto E = Severity::error;
inline constexpr auto W = Severity::warning;
inline constexpr auto A = Severity::resolved;

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

}  // namespace recipe_cases
