// The layouts that a search tries: combinations of sizes, a schedule, a strategy, micro-batches and
// recomputation, each as a change of the user's recipe.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/context_method.h"
#include "base/enum_name.h"
#include "base/schedule_id.h"
#include "plan/layout.h"
#include "plan/plan_trial.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Why a candidate of a search is out. `reason` is one of few; detail() is about this candidate, and
// is read, if at all, before the next one is looked at.
struct Refusal {
  std::string reason;
  std::function<std::string()> detail = [] { return std::string(); };
};

enum class LayoutField {
  tp,
  pp,
  stages,
  schedule,
  cp,
  cp_kind,
  ep,
  replicas,
  strategy,
  zero,
  micro_batch,
  recompute
};
constexpr auto enum_names(LayoutField) {
  using F = LayoutField;
  return std::array{EnumName{F::tp, "tp"},
                    EnumName{F::pp, "pp"},
                    EnumName{F::stages, "stages"},
                    EnumName{F::schedule, "schedule"},
                    EnumName{F::cp, "cp"},
                    EnumName{F::cp_kind, "cp_kind"},
                    EnumName{F::ep, "ep"},
                    EnumName{F::replicas, "replicas"},
                    EnumName{F::strategy, "strategy"},
                    EnumName{F::zero, "zero"},
                    EnumName{F::micro_batch, "micro_batch"},
                    EnumName{F::recompute, "recompute"}};
}
inline constexpr size_t kLayoutFields = size_t(LayoutField::recompute) + 1;

struct LayoutChoice {
  int64_t tp = 1, pp = 1, cp = 1, ep = 1;
  int64_t stages = 1;    // per rank
  int64_t replicas = 1;  // groups of ranks that each shard all parameters
  int64_t micro_batch = 1;
  ScheduleId schedule = ScheduleId::one_f_one_b;
  ContextMethod cp_kind = ContextMethod::p2p;
  recipe::Strategy strategy = recipe::Strategy::fsdp2;
  ShardLevel shards = ShardLevel::parameters;
  recipe::RecomputeGranularity recompute = recipe::RecomputeGranularity::none;

  bool operator==(const LayoutChoice&) const = default;
  bool same(LayoutField field, const LayoutChoice& other) const;
  LayoutChoice with(recipe::RecomputeGranularity granularity) const;
  // A field's value as users write it: "8", "1f1b", "full"; "0" to "3" of `zero`.
  std::string show(LayoutField field) const;
};

// What a user allows. Fields that are not free keep the recipe's value.
struct SearchFields {
  std::set<LayoutField> free;
  std::array<std::optional<std::string>, kLayoutFields> fixed;  // values that all layouts have
  std::function<bool(const LayoutChoice&)> only = {};           // if set, true for all layouts

  // All fields are free.
  static SearchFields all();
  // Reads "tp,pp", and "tp=4" or "distributed.tp_size=4". Report what is not a field.
  static SearchFields parse(const std::string& free, const std::vector<std::string>& fixed,
                            Diagnostics& diagnostics);
};

// A recipe with settings that can be undone, the last one first. Copies of a recipe take longer
// than its rules do.
class ChangedRecipe {
 public:
  explicit ChangedRecipe(const Recipe& base) : recipe_(base) {}

  // Makes the recipe that of `base`, as at construction, with these settings, each of another
  // field. Settings that it begins with already are kept.
  void set(const std::vector<std::string>& settings, const Recipe& base);
  const Recipe& recipe() const { return recipe_; }

 private:
  struct Made {
    std::string setting;
    std::vector<std::string> sections;  // that the recipe has because of it
  };
  void undo(const Made& made, const Recipe& base);

  Recipe recipe_;
  std::vector<Made> made_;
};

class LayoutSpace {
 public:
  // `source` must have a number of ranks. `plan` is the plan of `recipe`; groups of tp are at most
  // as large as `domain` ranks, unless the recipe's or a fixed one is larger.
  LayoutSpace(const RecipeSource& source, const Recipe& recipe, const Layout& layout,
              int64_t domain, const SearchFields& fields);

  const std::vector<LayoutChoice>& choices() const { return choices_; }
  const LayoutChoice& own() const { return own_; }  // the recipe's

  // Returns why sizes do not divide what they have to; nothing if they do.
  std::optional<Refusal> obstacle(const LayoutChoice& choice) const;
  // Returns what a user adds to the command line.
  Change change(const LayoutChoice& choice) const;
  // Returns the changed recipe, as plan_trial() reads it, in microseconds. The next call may change
  // it: fields in which two choices differ are set in place.
  const Recipe& recipe(const LayoutChoice& choice);
  // The number of fields that differ from the recipe's.
  int distance(const LayoutChoice& choice) const;
  // Returns such as "tp 4, pp 2": the fields that differ; "the recipe" if none does.
  std::string text(const LayoutChoice& choice) const;

 private:
  using Values = std::vector<int64_t>;
  struct DataParallel {
    recipe::Strategy strategy;
    ShardLevel shards;
    bool operator==(const DataParallel&) const = default;
  };
  struct Pipeline {
    ScheduleId schedule;
    int64_t stages;
  };

  bool is_free(LayoutField field) const { return fields_.free.contains(field); }
  const std::optional<std::string>& fixed(LayoutField field) const {
    return fields_.fixed[size_t(field)];
  }
  // Returns whether the choice has the values that the user wants, in all fields.
  bool allows(const LayoutChoice& choice) const;
  // The values of a size: the recipe's, and the usual ones if the field is free or fixed.
  Values sizes(LayoutField field, int64_t own, Values usual) const;
  std::vector<ContextMethod> cp_kinds(int64_t cp) const;
  std::vector<int64_t> replicas(const LayoutChoice& c) const;
  std::vector<recipe::RecomputeGranularity> recomputations() const;
  std::vector<Pipeline> pipelines(int64_t pp) const;
  std::vector<DataParallel> strategies() const;
  void list();
  void list_with_sizes(LayoutChoice c);  // tp, pp, cp and ep are chosen
  void list_with_pipeline(LayoutChoice c);

  // The settings that make the recipe use a strategy, those of sizes, and those of recomputation.
  std::vector<std::string> strategy_change(const LayoutChoice& choice) const;
  std::vector<std::string> size_change(const LayoutChoice& choice, const Recipe& base) const;
  // Whether settings are made in a recipe that already has its defaults, or before they are found.
  enum class Defaults { stay, anew };
  void add_recomputation(const LayoutChoice& choice, const Recipe& base, Defaults defaults,
                         std::vector<std::string>& settings) const;

  const RecipeSource source_;
  const Recipe recipe_;
  const Layout layout_;
  const int64_t domain_, length_;
  const SearchFields fields_;
  LayoutChoice own_;
  std::vector<LayoutChoice> choices_;
  // The recipe with another strategy, loaded in full: values that follow from it are right.
  struct Base {
    DataParallel key;
    Recipe recipe;
    ChangedRecipe changed;
    // The sizes of the last choice, without recomputation, and their settings.
    std::optional<LayoutChoice> sizes = {};
    std::vector<std::string> settings = {};
  };
  std::vector<Base> bases_;
};

}  // namespace mtrain::plan
