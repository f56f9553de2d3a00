#include "plan/parity_recipe.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/math.h"
#include "plan/load_recipe.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

// Sections that concern a run's files, its machine or its launcher, and not what is computed.
const std::vector<std::string> kRunOnly{
    "~checkpoint", "~validation", "~debug", "~launch", "~comm", "~hardware", "~mixed_precision",
    "mixed_precision.name=fp32", "train.device=cpu", "train.threads=1", "dataset.train=made_up",
    // Weights change enough within a few steps to show a wrong gradient in the next loss.
    "~lr_scheduler", "lr_scheduler.style=constant", "optimizer.lr=1e-3"};

// Sizes of a model to try, the smallest first.
struct ParitySizes {
  int64_t layers, heads, groups, experts, micro_batches;
};

// The values, without repetitions, in their order.
std::vector<int64_t> distinct(std::vector<int64_t> values, int64_t most) {
  std::vector<int64_t> out;
  for (const int64_t v : values)
    if (v > 0 && v <= most && std::ranges::find(out, v) == out.end()) out.push_back(v);
  if (out.empty()) out.push_back(most);
  return out;
}

std::vector<ParitySizes> sizes_to_try(const Recipe& r, const RunPlan& plan) {
  const Layout& l = plan.layout;
  const spec::Experts* experts = plan.model.experts();
  const int64_t layers = plan.model.main_layers();
  const int64_t heads = r.model.num_attention_heads, groups = r.model.kv_heads();
  const int64_t all_experts = experts ? experts->count : 0;
  std::vector<ParitySizes> sizes;
  for (const int64_t micros : {std::max<int64_t>(2 * l.pp, 2), 4 * l.pp})
    for (const int64_t layer :
         distinct({std::max<int64_t>(l.stages, 2), 2 * l.stages, layers}, layers))
      for (const int64_t head :
           distinct({2 * l.tp, 2 * l.tp * l.cp, 4 * l.tp * l.cp, heads}, heads))
        for (const int64_t group : distinct({l.tp, l.tp * l.cp, head, groups}, head))
          for (const int64_t expert :
               experts ? distinct({std::max(2 * l.ep, 2 * experts->per_token), all_experts},
                                  all_experts)
                       : std::vector<int64_t>{0})
            sizes.push_back({layer, head, group, expert, micros});
  return sizes;
}

Change change_to(const ParitySizes& s, const Recipe& r, const RunPlan& plan, int64_t steps) {
  constexpr int64_t kHeadDim = 16, kLeastLength = 32;
  const Layout& l = plan.layout;
  const int64_t hidden = s.heads * kHeadDim, tp = l.tp;
  const int64_t length = round_up(kLeastLength, sequence_multiple(r, l));
  Change change{.settings = kRunOnly};
  const auto set = [&](const char* field, int64_t value) {
    change.settings.push_back(fmt::format("{}={}", field, value));
  };
  set("model.num_layers", s.layers);
  set("model.hidden_size", hidden);
  set("model.num_attention_heads", s.heads);
  set("model.num_query_groups", s.groups);
  set("model.kv_channels", kHeadDim);
  set("model.vocab_size", kParityVocab);
  set("model.ffn_hidden_size", 2 * hidden);
  if (s.experts) {
    set("model.moe.num_experts", s.experts);
    set("model.moe.ffn_hidden_size", round_up(hidden / 2, tp));
    if (plan.model.experts()->shared_ffn > 0)
      set("model.moe.shared_expert_ffn_hidden_size", round_up(hidden, tp));
  }
  set("dataset.seq_length", length);
  if (r.packed_sequence.packed_sequence_size > 0)
    set("packed_sequence.packed_sequence_size", length);
  set("train.micro_batch_size", 1);
  set("train.global_batch_size", s.micro_batches * l.dp);
  set("train.steps", steps);
  return change;
}

std::set<std::string> active_overlap(const RunPlan& plan) {
  std::set<std::string> fields;
  for (const OverlapRow& row : plan.overlap.table)
    if (row.active) fields.insert(row.field);
  return fields;
}

// Returns why the rules refuse the changed recipe.
std::string refusal_of(const RecipeSource& source, const Change& change) {
  Diagnostics diagnostics;
  std::vector<std::string> settings = source.settings;
  settings.insert(settings.end(), change.settings.begin(), change.settings.end());
  const int64_t world = change.world > 0 ? change.world : source.world;
  if (source.text.empty())
    load_recipe(*source.models, source.path, settings, diagnostics, world, source.machine,
                source.saved_model);
  else
    load_recipe_text(*source.models, source.text, source.path, settings, diagnostics, world,
                     source.machine);
  return diagnostics.text(recipe::Severity::error);
}

}  // namespace

std::string parity_sizes_text(const Trial& t) {
  const spec::ModelSpec& m = t.plan.model;
  std::string text = fmt::format("{} layers, hidden size {}, {} heads", m.main_layers(), m.hidden,
                                 t.recipe.model.num_attention_heads);
  if (m.experts()) text += fmt::format(", {} experts", m.experts()->count);
  return text + fmt::format(", {} samples of {} tokens", t.recipe.train.global_batch_size,
                            t.plan.sample_length);
}

Change shrink_for_parity(const RecipeSource& source, int64_t steps) {
  // The machine that plans is a CPU, as the one that trains.
  const auto full = plan_trial(
      source,
      {.settings = {"train.device=cpu", "~mixed_precision", "mixed_precision.name=fp32", "~debug",
                    "dataset.train=made_up", "model.vocab_size=" + std::to_string(kParityVocab)}},
      kParityVocab);
  if (!full) {
    const Change on_cpu{
        .settings = {"train.device=cpu", "mixed_precision.name=fp32", "dataset.train=made_up"}};
    throw UserError("the layout is not possible in fp32 on CPUs:\n" + refusal_of(source, on_cpu));
  }
  const std::set<std::string> wanted = active_overlap(full->plan);
  std::optional<Change> best;
  size_t best_active = 0;
  constexpr int64_t kMostHidden = 1024;
  Change last;
  for (const ParitySizes& sizes : sizes_to_try(full->recipe, full->plan)) {
    Change change = change_to(sizes, full->recipe, full->plan, steps);
    last = change;
    const auto trial = plan_trial(source, change, kParityVocab);
    if (!trial || trial->plan.model.hidden > kMostHidden) continue;
    size_t active = 1;
    for (const std::string& field : active_overlap(trial->plan)) active += wanted.contains(field);
    if (active > best_active) best = std::move(change), best_active = active;
    if (active == wanted.size() + 1) break;
  }
  if (!best)
    throw UserError(
        "no small model fits the layout; the last one was refused:\n" + refusal_of(source, last),
        "set the sizes of a small model yourself, such as model.num_layers=4");
  return *best;
}

Change on_single_rank(const RecipeSource& source, const Change& shrunk) {
  Change alone{.settings = shrunk.settings, .world = 1};
  for (const char* setting : {"~distributed", "~comm_overlap", "~ddp", "distributed.strategy=ddp"})
    alone.settings.emplace_back(setting);
  for (const std::string& more : {std::string(), std::string("distributed.strategy=megatron_ddp"),
                                  std::string("distributed.strategy=fsdp2")}) {
    Change change = alone;
    if (!more.empty()) change.settings.push_back(more);
    if (plan_trial(source, change, kParityVocab)) return change;
  }
  throw UserError("the model is refused on a single rank:\n" + refusal_of(source, alone));
}

std::vector<OverlapOff> each_overlap_off(const RecipeSource& source, const Change& shrunk,
                                         const RunPlan& plan) {
  const std::set<std::string> active = active_overlap(plan);
  // Returns the change with these settings, if they turn the field off.
  const auto turned_off = [&](const std::string& field, const Change& off) {
    Change change{.settings = shrunk.settings, .world = shrunk.world};
    change.settings.insert(change.settings.end(), off.settings.begin(), off.settings.end());
    const auto trial = plan_trial(source, change, kParityVocab);
    const bool is_off = trial && !active_overlap(trial->plan).contains(field);
    return is_off ? std::optional(change) : std::nullopt;
  };
  std::vector<OverlapOff> all;
  for (const std::string& field : active) {
    std::vector<Change> ways;
    for (const char* value : {"=false", "=0", "=1"}) ways.push_back({.settings = {field + value}});
    // Another feature may need this one.
    for (const std::string& other : active)
      if (other != field) ways.push_back({.settings = {field + "=false", other + "=false"}});
    OverlapOff off{.what = field};
    for (size_t i = 0; i < ways.size() && !off.change; ++i)
      if ((off.change = turned_off(field, ways[i]))) off.what = ways[i].words();
    all.push_back(std::move(off));
  }
  return all;
}

}  // namespace mtrain::plan
