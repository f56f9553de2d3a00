#include "plan/fit_search.h"

#include <algorithm>
#include <limits>

#include <fmt/core.h>

#include "base/strings.h"
#include "plan/size_settings.h"

namespace mtrain::plan {

namespace {

// These bounds keep a search below a second. Few recipes reach them.
constexpr int kMostSmallest = 120;      // trials of search_smallest()
constexpr int kMostCombinations = 100;  // trials of search_combinations()

struct Sizes {
  int64_t tp = 1, pp = 1, cp = 1, ep = 1;
};

// One value of a setting that may save memory.
struct Option {
  Change change = {};
  Sizes sizes = {0, 0, 0, 0};  // 0: as in the recipe
  // A size below the recipe's saves nothing alone, but leaves ranks to other sizes.
  bool smaller = false;
  // The memory of the plan with this option alone; infinite if the rules refuse it.
  double bytes = std::numeric_limits<double>::infinity();
};
using Axis = std::vector<Option>;  // the values of one setting, weakest first
using Combination = std::vector<const Option*>;

class FitSearch {
 public:
  FitSearch(const RecipeSource& source, const Recipe& recipe, const RunPlan& plan)
      : source_(source),
        recipe_(recipe),
        plan_(plan),
        layout_(plan.layout),
        demand_(memory_demand(recipe, plan)) {
    advice_.demand = demand_;
    advice_.world = layout_.world;
    axes_ = {ranks(), sharding(), recomputation(), tensor(), experts(), context(), pipeline()};
    first_size_ = 3, end_size_ = axes_.size();
    axes_.push_back(micro_batch());
  }

  FitAdvice search() {
    for (Axis& axis : axes_)
      for (Option& option : axis)
        if (!option.smaller && attempt({&option}, &option.bytes)) return advice_;
    if (const Combination smallest = search_smallest(); !smallest.empty())
      if (!search_combinations()) drop_needless(smallest);
    return advice_;
  }

 private:
  Axis ranks() const {
    Axis axis;
    if (source_.world > 0 || plan_.device.kind != DeviceKind::cuda) return axis;
    for (int64_t times = 2; times <= 256; times *= 2)
      axis.push_back({.change = {.settings = {}, .world = layout_.world * times}});
    return axis;
  }

  Axis sharding() const {
    using enum recipe::Strategy;
    const auto& d = recipe_.distributed;
    Axis axis;
    const auto add = [&](std::vector<std::string> settings) {
      axis.push_back({.change = {.settings = std::move(settings)}});
    };
    if (source_.world == 1) return axis;  // there is nobody to share with
    if (d.strategy == megatron_fsdp)
      for (int level = int(shard_level(recipe_)) + 1; level <= int(ShardLevel::parameters); ++level)
        add({fmt::format("distributed.zero_dp_strategy={}", level)});
    if (d.strategy == megatron_ddp && !recipe_.ddp.use_distributed_optimizer)
      add({"ddp.use_distributed_optimizer=true"});
    if (d.strategy == ddp) add({"distributed.strategy=megatron_ddp"});
    if (d.strategy == megatron_fsdp) return axis;
    std::vector<std::string> settings;
    if (d.strategy != fsdp2) settings = fsdp2_settings(recipe_);
    if (layout_.dp_replicate > 1) settings.emplace_back("~distributed.dp_replicate_size");
    if (!settings.empty()) add(settings);
    const auto stronger = [&](const char* setting) {
      settings.emplace_back(setting);
      add(settings);
    };
    if (d.strategy != fsdp2 || d.defer_fsdp_grad_sync)
      stronger("distributed.defer_fsdp_grad_sync=false");
    if (!d.reshard_after_forward.value_or(false))
      stronger("distributed.reshard_after_forward=true");
    return axis;
  }

  Axis recomputation() const {
    Axis axis;
    if (recipe_.recompute.granularity == recipe::RecomputeGranularity::none)
      axis.push_back({.change = {.settings = {"recompute=selective"}}});
    if (plan_.recompute.layers == plan_.model.layer_count()) return axis;
    Change full{.settings = {"recompute=full"}};
    // It excludes these two settings.
    if (plan_.overlap.overlap_moe_expert_parallel_comm)
      full.add({.settings = {"comm_overlap.overlap_moe_expert_parallel_comm=false",
                             "comm_overlap.delay_wgrad_compute=false"}});
    axis.push_back({.change = std::move(full)});
    return axis;
  }

  // The sizes of tp that keep its groups within a node.
  Axis tensor() const {
    Axis axis = smaller_sizes(LayoutSize::tp, layout_.tp);
    const int64_t node = recipe_.hardware.gpus_per_node;
    for (int64_t tp = 2 * layout_.tp; tp <= node; tp += layout_.tp)
      if (node % tp == 0 && recipe_.model.num_attention_heads % tp == 0)
        axis.push_back(with_size(LayoutSize::tp, tp));
    return axis;
  }
  Axis experts() const {
    Axis axis = smaller_sizes(LayoutSize::ep, layout_.ep);
    const int64_t count = recipe_.model.moe.num_experts;
    for (int64_t ep = 2 * layout_.ep; ep <= count; ep *= 2)
      if (count % ep == 0) axis.push_back(with_size(LayoutSize::ep, ep));
    return axis;
  }
  Axis context() const {
    Axis axis = smaller_sizes(LayoutSize::cp, layout_.cp);
    constexpr int64_t kTimes = 16;
    for (int64_t cp = 2 * layout_.cp; cp <= kTimes * layout_.cp; cp *= 2)
      if (plan_.sample_length % (2 * cp) == 0) axis.push_back(with_size(LayoutSize::cp, cp));
    return axis;
  }
  Axis pipeline() const {
    Axis axis = smaller_sizes(LayoutSize::pp, layout_.pp);
    constexpr int64_t kTimes = 32;
    const int64_t most = std::min(kTimes * layout_.pp, plan_.model.layer_count());
    for (int64_t pp = 2 * layout_.pp; pp <= most; pp *= 2)
      axis.push_back(with_size(LayoutSize::pp, pp));
    return axis;
  }

  Option with_size(LayoutSize which, int64_t size) const {
    Option option{.change = {.settings = size_settings(recipe_, which, size)}};
    switch (which) {
      case LayoutSize::tp: option.sizes.tp = size; break;
      case LayoutSize::pp: option.sizes.pp = size; break;
      case LayoutSize::cp: option.sizes.cp = size; break;
      case LayoutSize::ep: option.sizes.ep = size; break;
    }
    return option;
  }
  Axis smaller_sizes(LayoutSize which, int64_t size) const {
    Axis axis;
    for (int64_t part = 1; part < size; part *= 2)
      if (size % part == 0) {
        axis.push_back(with_size(which, part));
        axis.back().smaller = true;
      }
    return axis;
  }

  Axis micro_batch() const {
    Axis axis;
    const char* field = recipe_.distributed.pipeline.pp_microbatch_size && layout_.pp > 1
                            ? "distributed.pipeline.pp_microbatch_size"
                            : "train.micro_batch_size";
    for (int64_t size = layout_.micro_batch; size > 1;) {
      size = size % 2 == 0 ? size / 2 : 1;
      axis.push_back({.change = {.settings = {fmt::format("{}={}", field, size)}}});
    }
    return axis;
  }

  // Whether sizes divide the ranks, and ranks the batch. This is cheaper than a trial, which checks
  // all rules.
  bool divides(const Combination& options) const {
    Sizes s{layout_.tp, layout_.pp, layout_.cp, layout_.ep};
    int64_t world = source_.world;
    for (const Option* o : options) {
      if (o->sizes.tp > 0) s.tp = o->sizes.tp;
      if (o->sizes.pp > 0) s.pp = o->sizes.pp;
      if (o->sizes.cp > 0) s.cp = o->sizes.cp;
      if (o->sizes.ep > 0) s.ep = o->sizes.ep;
      if (o->change.world > 0) world = o->change.world;
    }
    if (world == 0) return true;
    const int64_t model_ranks = s.tp * s.pp * s.cp, dp = world / model_ranks;
    const int64_t expert_ranks = dp * s.cp * (layout_.undivided_experts() ? s.tp : 1);
    return world % model_ranks == 0 && recipe_.train.global_batch_size % dp == 0 &&
           expert_ranks % s.ep == 0;
  }

  // Returns whether the changed plan fits. It then becomes the advice, and so does a plan that
  // needs less memory than all before it.
  bool attempt(const Combination& options, double* bytes = nullptr) {
    if (!divides(options)) return false;
    Change change;
    for (const Option* o : options) change.add(o->change);
    const auto trial = plan_trial(source_, change, plan_.model.vocab);
    if (!trial || trial->plan.device.kind != plan_.device.kind) return false;
    const MemoryDemand d = memory_demand(trial->recipe, trial->plan);
    if (!d.known() || d.of_host != demand_.of_host) return false;
    ++advice_.trials;
    if (bytes) *bytes = d.bytes;
    if (d.fits() || d.bytes < advice_.demand.bytes) {
      advice_.fits = d.fits();
      advice_.change = std::move(change);
      advice_.demand = d;
      advice_.world = trial->plan.layout.world;
    }
    return d.fits();
  }

  // Returns the value that needs least memory if it is set alone; null if all need as much as the
  // recipe.
  const Option* best(const Axis& axis) const {
    const auto at = std::ranges::min_element(axis, {}, &Option::bytes);
    return at != axis.end() && at->bytes < demand_.bytes ? &*at : nullptr;
  }

  // Combines the strongest values of all settings but sizes with all sizes, largest first. Returns
  // the first combination that fits; empty if none does.
  Combination search_smallest() {
    Combination options;
    for (size_t i = 0; i < axes_.size(); ++i)
      if (const Option* o = i < first_size_ || i >= end_size_ ? best(axes_[i]) : nullptr)
        options.push_back(o);
    most_ = advice_.trials + kMostSmallest;
    const bool fits = add_sizes(first_size_, options);
    advice_.all = advice_.trials < most_;
    return fits ? options : Combination();
  }
  bool add_sizes(size_t axis, Combination& options) {
    if (axis == end_size_) return advice_.trials < most_ && attempt(options);
    return add_sizes_of(axis, false, options) || add_sizes(axis + 1, options) ||
           add_sizes_of(axis, true, options);
  }
  bool add_sizes_of(size_t axis, bool smaller, Combination& options) {
    for (size_t i = axes_[axis].size(); i-- > 0;) {
      if (axes_[axis][i].smaller != smaller) continue;
      options.push_back(&axes_[axis][i]);
      if (add_sizes(axis + 1, options)) return true;
      options.pop_back();
    }
    return false;
  }

  // Tries combinations of two settings, then of three, and so on. Returns whether one fits.
  bool search_combinations() {
    most_ = advice_.trials + kMostCombinations;
    for (size_t settings = 2; settings <= axes_.size(); ++settings) {
      std::vector<size_t> chosen;
      if (choose_settings(0, settings, chosen)) return true;
    }
    return false;
  }
  bool choose_settings(size_t from, size_t left, std::vector<size_t>& chosen) {
    if (left == 0) return choose_values(chosen);
    for (size_t i = from; i + left <= axes_.size(); ++i) {
      if (axes_[i].empty()) continue;
      chosen.push_back(i);
      if (choose_settings(i + 1, left - 1, chosen)) return true;
      chosen.pop_back();
    }
    return false;
  }
  bool choose_values(const std::vector<size_t>& chosen) {
    // If the best values together do not fit, weaker ones do not either.
    Combination all;
    for (const size_t axis : chosen)
      if (const Option* o = best(axes_[axis])) all.push_back(o);
    if (all.size() == chosen.size() && divides(all)) {
      double bytes = 0;
      const FitAdvice before = advice_;
      if (advice_.trials >= most_) return false;
      const bool fit = attempt(all, &bytes);
      const int trials = advice_.trials;
      if (!fit && bytes > 0) return false;
      if (fit) advice_ = before;  // a weaker value may fit, too
      advice_.trials = trials;
    }
    Combination options;
    return add_values(chosen, options);
  }
  bool add_values(const std::vector<size_t>& chosen, Combination& options) {
    if (options.size() == chosen.size())
      return may_fit(options) && advice_.trials < most_ && attempt(options);
    for (const Option& option : axes_[chosen[options.size()]]) {
      options.push_back(&option);
      if (add_values(chosen, options)) return true;
      options.pop_back();
    }
    return false;
  }
  // Two settings hardly save more together than the sum of what each saves alone.
  bool may_fit(const Combination& options) const {
    double bytes = demand_.bytes;
    for (const Option* o : options)
      if (o->bytes < std::numeric_limits<double>::infinity()) bytes -= demand_.bytes - o->bytes;
    return MemoryDemand{bytes, demand_.memory}.fits();
  }

  // Removes each setting without which the combination fits as well.
  void drop_needless(Combination options) {
    for (size_t i = options.size(); i-- > 0 && options.size() > 1;) {
      Combination fewer = options;
      fewer.erase(fewer.begin() + int64_t(i));
      if (attempt(fewer)) options = std::move(fewer);
    }
    attempt(options);
  }

  const RecipeSource& source_;
  const Recipe& recipe_;
  const RunPlan& plan_;
  const Layout& layout_;
  const MemoryDemand demand_;
  std::vector<Axis> axes_;
  size_t first_size_ = 0, end_size_ = 0;  // the axes of tp, ep, cp and pp
  int most_ = 0;                          // the number of trials at which the search ends
  FitAdvice advice_;
};

}  // namespace

FitAdvice search_fit(const RecipeSource& source, const Recipe& recipe, const RunPlan& plan) {
  return FitSearch(source, recipe, plan).search();
}

std::string hint_text(const FitAdvice& a) {
  const std::string words = a.change.words(), bytes = human_bytes(a.demand.bytes);
  if (a.fits)
    return fmt::format("add {}: {} of {} are then planned", words, bytes,
                       human_bytes(a.demand.memory));
  const std::string ranks = fmt::format("{} rank{}", a.world, a.world == 1 ? "" : "s");
  std::string text =
      a.all ? fmt::format("no layout of {} fits: of {} that were tried, ", ranks, a.trials)
            : fmt::format("none of {} layouts of {} that were tried fits: ", a.trials, ranks);
  return text + (words.empty() ? "none needs less"
                               : fmt::format("the least is {}, with {}", bytes, words));
}

}  // namespace mtrain::plan
