#include "plan/layout_space.h"

#include <algorithm>
#include <numeric>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/strings.h"
#include "plan/load_recipe.h"
#include "plan/size_settings.h"
#include "recipe/schema/schema.h"
#include "schedule/catalog.h"

namespace mtrain::plan {

using recipe::RecomputeGranularity;
using recipe::Strategy;

namespace {

// A rank of context parallelism has at least this many tokens of a sequence; with fewer, it waits
// for keys and values.
constexpr int64_t kLeastTokens = 4096;
constexpr int64_t kMostMicroBatch = 4;
constexpr int64_t kMostStages = 8;  // per rank

// Fields of recipes that say the same as a field of the search.
constexpr std::pair<std::string_view, LayoutField> kPaths[] = {
    {"distributed.tp_size", LayoutField::tp},
    {"distributed.pp_size", LayoutField::pp},
    {"distributed.vpp_size", LayoutField::stages},
    {"distributed.pipeline.pp_schedule", LayoutField::schedule},
    {"distributed.cp_size", LayoutField::cp},
    {"distributed.cp_comm_type", LayoutField::cp_kind},
    {"distributed.ep_size", LayoutField::ep},
    {"distributed.dp_replicate_size", LayoutField::replicas},
    {"distributed.strategy", LayoutField::strategy},
    {"distributed.zero_dp_strategy", LayoutField::zero},
    {"train.micro_batch_size", LayoutField::micro_batch},
    {"recompute.granularity", LayoutField::recompute},
    {"recompute", LayoutField::recompute}};

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  for (const auto& entry : enum_names(LayoutField{})) names.emplace_back(entry.name);
  return names;
}

std::optional<LayoutField> field_named(std::string_view word) {
  for (const auto& entry : enum_names(LayoutField{}))
    if (entry.name == word) return entry.value;
  for (const auto& [path, field] : kPaths)
    if (path == word) return field;
  return {};
}

std::optional<LayoutField> read_field(const std::string& word, const char* option,
                                      Diagnostics& diagnostics) {
  const auto field = field_named(word);
  if (field) return field;
  const std::vector<std::string> names = field_names();
  const std::string similar = nearest(word, names);
  diagnostics.add(option, fmt::format("`{}` is not a field of a layout", word),
                  similar.empty() ? fmt::format("use {}", fmt::join(names, ", "))
                                  : fmt::format("did you mean {}?", similar));
  return {};
}

// Whether a fixed value means what show() writes: names of enumerations have several spellings.
template <class E>
bool same_name(const std::string& written, E value) {
  for (const auto& entry : enum_names(E{}))
    if (entry.value == value && to_lower(written) == to_lower(std::string(entry.name))) return true;
  return false;
}

template <class E>
bool is_name(const std::string& written) {
  return std::ranges::any_of(enum_names(E{}),
                             [&](const auto& entry) { return same_name(written, entry.value); });
}

bool is_value(LayoutField field, const std::string& value) {
  switch (field) {
    case LayoutField::schedule: return is_name<ScheduleId>(value);
    case LayoutField::cp_kind: return is_name<ContextMethod>(value);
    case LayoutField::strategy: return is_name<Strategy>(value);
    case LayoutField::recompute: return is_name<RecomputeGranularity>(value);
    case LayoutField::zero: return value.size() == 1 && value[0] >= '0' && value[0] <= '3';
    default:
      return !value.empty() && value.size() <= 8 && value[0] != '0' &&
             std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
  }
}

bool has_value(const LayoutChoice& c, LayoutField field, const std::string& value) {
  switch (field) {
    case LayoutField::schedule: return c.pp == 1 || same_name(value, c.schedule);
    case LayoutField::cp_kind: return c.cp == 1 || same_name(value, c.cp_kind);
    case LayoutField::strategy: return same_name(value, c.strategy);
    case LayoutField::recompute: return same_name(value, c.recompute);
    default: return c.show(field) == value;
  }
}

std::vector<int64_t> powers_of_two(int64_t most) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= most; n *= 2) all.push_back(n);
  return all;
}

std::vector<int64_t> divisors(int64_t number, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= std::min(number, most); ++n)
    if (number % n == 0) all.push_back(n);
  return all;
}

std::string path_of(const std::string& setting) {
  return setting[0] == '~' ? setting.substr(1) : setting.substr(0, setting.find('='));
}

const recipe::SchemaRow& row_of(const std::string& path) {
  const recipe::SchemaRow* row = recipe::find_row(path);
  MT_CHECK(row, "{} is not a field", path);
  return *row;
}

// Copies a field's value; accessors of rows take no const recipe.
void copy_value(const recipe::SchemaRow& row, const Recipe& from, Recipe& to) {
  row.ops->copy(row.at(to), row.at(const_cast<Recipe&>(from)));
}

// Sets one field, or resets it to its default ("~path"), as an override does. Returns the sections
// that the recipe had not had.
std::vector<std::string> apply(const std::string& setting, Recipe& r) {
  static const Recipe defaults;
  const std::string path = path_of(setting);
  const recipe::SchemaRow& row = row_of(path);
  if (setting[0] == '~') {
    copy_value(row, defaults, r);
    r.origins.erase(path);
    r.spellings.erase(path);
    return {};
  }
  const recipe::Node value{.kind = recipe::Node::Kind::scalar,
                           .text = setting.substr(path.size() + 1)};
  recipe::ValueError error;
  MT_CHECK(row.ops->read(value, row.options, row.at(r), error), "{}: {}", setting, error.reason);
  r.origins[path] = recipe::Origin::command_line;
  r.spellings[path] = path;
  std::vector<std::string> added;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
    if (std::string section = path.substr(0, dot); r.sections.insert(section).second)
      added.push_back(std::move(section));
  return added;
}

// Makes the entry of `key` in one map that of another one, also if that has none.
template <class Map>
void restore(const std::string& key, const Map& from, Map& to) {
  if (const auto at = from.find(key); at != from.end())
    to.insert_or_assign(key, at->second);
  else
    to.erase(key);
}

LayoutChoice choice_of(const Recipe& r, const Layout& l) {
  const auto& d = r.distributed;
  return {.tp = l.tp,
          .pp = l.pp,
          .cp = l.cp,
          .ep = l.ep,
          .stages = l.stages_per_rank,
          .replicas = l.dp_replicate,
          .micro_batch = l.micro_batch,
          .schedule = d.pipeline.pp_schedule,
          .cp_kind = d.cp_comm_type.empty() ? ContextMethod::p2p : d.cp_comm_type[0],
          .strategy = d.strategy,
          .shards = shard_level(r),
          .recompute = r.recompute.granularity};
}

constexpr LayoutField kAllFields[] = {
    LayoutField::tp,       LayoutField::pp,      LayoutField::stages,      LayoutField::schedule,
    LayoutField::cp,       LayoutField::cp_kind, LayoutField::ep,          LayoutField::replicas,
    LayoutField::strategy, LayoutField::zero,    LayoutField::micro_batch, LayoutField::recompute};

// Fields that mean nothing at the choice's other sizes.
bool is_idle(const LayoutChoice& c, LayoutField field) {
  switch (field) {
    case LayoutField::stages:
    case LayoutField::schedule: return c.pp == 1;
    case LayoutField::cp_kind: return c.cp == 1;
    case LayoutField::replicas: return c.strategy != Strategy::fsdp2;
    case LayoutField::zero: return c.strategy == Strategy::fsdp2 || c.strategy == Strategy::ddp;
    default: return false;
  }
}

}  // namespace

std::string LayoutChoice::show(LayoutField field) const {
  switch (field) {
    case LayoutField::tp: return std::to_string(tp);
    case LayoutField::pp: return std::to_string(pp);
    case LayoutField::stages: return std::to_string(stages);
    case LayoutField::schedule: return std::string(enum_name(schedule));
    case LayoutField::cp: return std::to_string(cp);
    case LayoutField::cp_kind: return std::string(enum_name(cp_kind));
    case LayoutField::ep: return std::to_string(ep);
    case LayoutField::replicas: return std::to_string(replicas);
    case LayoutField::strategy: return std::string(enum_name(strategy));
    case LayoutField::zero: return std::to_string(int(shards));
    case LayoutField::micro_batch: return std::to_string(micro_batch);
    case LayoutField::recompute: return std::string(enum_name(recompute));
  }
  throw BugError("a field of a layout");
}

bool LayoutChoice::same(LayoutField field, const LayoutChoice& other) const {
  switch (field) {
    case LayoutField::tp: return tp == other.tp;
    case LayoutField::pp: return pp == other.pp;
    case LayoutField::stages: return stages == other.stages;
    case LayoutField::schedule: return schedule == other.schedule;
    case LayoutField::cp: return cp == other.cp;
    case LayoutField::cp_kind: return cp_kind == other.cp_kind;
    case LayoutField::ep: return ep == other.ep;
    case LayoutField::replicas: return replicas == other.replicas;
    case LayoutField::strategy: return strategy == other.strategy;
    case LayoutField::zero: return shards == other.shards;
    case LayoutField::micro_batch: return micro_batch == other.micro_batch;
    case LayoutField::recompute: return recompute == other.recompute;
  }
  throw BugError("a field of a layout");
}

LayoutChoice LayoutChoice::with(recipe::RecomputeGranularity granularity) const {
  LayoutChoice choice = *this;
  choice.recompute = granularity;
  return choice;
}

SearchFields SearchFields::all() {
  SearchFields fields;
  fields.free.insert(std::begin(kAllFields), std::end(kAllFields));
  return fields;
}

SearchFields SearchFields::parse(const std::string& free, const std::vector<std::string>& fixed,
                                 Diagnostics& diagnostics) {
  SearchFields fields = free.empty() ? all() : SearchFields();
  if (!free.empty())
    for (const std::string& word : split(free, ','))
      if (const auto field = read_field(word, "--free", diagnostics)) fields.free.insert(*field);
  for (const std::string& setting : fixed) {
    const size_t equals = setting.find('=');
    const std::string word = setting.substr(0, equals),
                      value = equals == std::string::npos ? "" : setting.substr(equals + 1);
    const auto field = read_field(word, "--fix", diagnostics);
    if (!field) continue;
    if (!is_value(*field, value))
      diagnostics.add(
          "--fix", fmt::format("`{}` gives {} no value that it can have", setting, word),
          fmt::format("write such as {}={}", enum_name(*field), LayoutChoice().show(*field)));
    fields.fixed[size_t(*field)] = value;
  }
  return fields;
}

void ChangedRecipe::set(const std::vector<std::string>& settings, const Recipe& base) {
  const size_t both = std::min(settings.size(), made_.size());
  size_t kept = 0;
  while (kept < both && made_[kept].setting == settings[kept]) ++kept;
  for (; made_.size() > kept; made_.pop_back()) undo(made_.back(), base);
  for (size_t i = kept; i < settings.size(); ++i)
    made_.push_back({settings[i], apply(settings[i], recipe_)});
}

void ChangedRecipe::undo(const Made& made, const Recipe& base) {
  const std::string path = path_of(made.setting);
  copy_value(row_of(path), base, recipe_);
  restore(path, base.origins, recipe_.origins);
  restore(path, base.spellings, recipe_.spellings);
  for (const std::string& section : made.sections) recipe_.sections.erase(section);
}

LayoutSpace::LayoutSpace(const RecipeSource& source, const Recipe& recipe, const Layout& layout,
                         int64_t domain, const SearchFields& fields)
    : source_(source),
      recipe_(recipe),
      layout_(layout),
      domain_(domain),
      length_(sample_length(recipe)),
      fields_(fields),
      own_(choice_of(recipe, layout)) {
  list();
}

LayoutSpace::Values LayoutSpace::sizes(LayoutField field, int64_t own, Values usual) const {
  if (fixed(field)) return {std::stoll(*fixed(field))};
  if (!is_free(field)) return {own};
  if (std::ranges::count(usual, own) == 0) usual.push_back(own);
  std::ranges::sort(usual);
  return usual;
}

bool LayoutSpace::allows(const LayoutChoice& c) const {
  if (fields_.only && !fields_.only(c)) return false;
  return std::ranges::all_of(kAllFields, [&](LayoutField field) {
    return !fixed(field) || has_value(c, field, *fixed(field));
  });
}

std::vector<LayoutSpace::Pipeline> LayoutSpace::pipelines(int64_t pp) const {
  if (pp == 1) return {{own_.schedule, 1}};
  const bool any_schedule = is_free(LayoutField::schedule) || fixed(LayoutField::schedule),
             any_stages = is_free(LayoutField::stages) || fixed(LayoutField::stages);
  std::vector<Pipeline> all;
  const auto add = [&](ScheduleId id, int64_t stages) {
    const schedule::ScheduleKind& kind = schedule::schedule_kind(id);
    if (stages < kind.min_stages || stages > kind.max_stages) return;
    if (std::ranges::none_of(
            all, [&](const Pipeline& p) { return p.schedule == id && p.stages == stages; }))
      all.push_back({id, stages});
  };
  const bool in_pipeline = own_.pp > 1;
  std::vector<ScheduleId> ids{own_.schedule};
  if (any_schedule)
    for (const auto& entry : enum_names(ScheduleId{})) ids.push_back(entry.value);
  for (const ScheduleId id : ids) {
    // These two take as long as others that need less memory.
    const bool usual = id != ScheduleId::gpipe && id != ScheduleId::looped_bfs;
    const bool named = fixed(LayoutField::schedule) || (in_pipeline && id == own_.schedule);
    if (!usual && !named) continue;
    if (id == ScheduleId::dfs && !named) continue;  // another name of interleaved_1f1b
    if (in_pipeline) add(id, own_.stages);
    if (fixed(LayoutField::stages)) add(id, std::stoll(*fixed(LayoutField::stages)));
    if (any_stages || !in_pipeline)
      for (const int64_t stages : powers_of_two(kMostStages)) add(id, stages);
  }
  return all;
}

std::vector<ContextMethod> LayoutSpace::cp_kinds(int64_t cp) const {
  if (cp == 1 || (!is_free(LayoutField::cp_kind) && !fixed(LayoutField::cp_kind)))
    return {own_.cp_kind};
  std::vector<ContextMethod> all{ContextMethod::p2p, ContextMethod::all_gather, ContextMethod::a2a};
  if (own_.cp_kind == ContextMethod::a2a_p2p) all.push_back(own_.cp_kind);
  return all;
}

// ddp and megatron_fsdp go together with no other parallelism but, of the latter, tp and cp.
std::vector<LayoutSpace::DataParallel> LayoutSpace::strategies() const {
  const DataParallel own{own_.strategy, own_.shards};
  const bool any_strategy = is_free(LayoutField::strategy) || fixed(LayoutField::strategy),
             any_level = is_free(LayoutField::zero) || fixed(LayoutField::zero);
  std::vector<DataParallel> all{own};
  for (const DataParallel& d : {DataParallel{Strategy::fsdp2, ShardLevel::parameters},
                                {Strategy::megatron_ddp, ShardLevel::optimizer},
                                {Strategy::megatron_ddp, ShardLevel::nothing},
                                {Strategy::megatron_fsdp, ShardLevel::optimizer},
                                {Strategy::megatron_fsdp, ShardLevel::gradients},
                                {Strategy::megatron_fsdp, ShardLevel::parameters},
                                {Strategy::ddp, ShardLevel::nothing}}) {
    if (d == own || (d.strategy != own.strategy && !any_strategy)) continue;
    const bool same = d.strategy == own.strategy;
    if (same && !any_level) continue;
    all.push_back(d);
  }
  return all;
}

// One group, or groups whose ranks share a domain.
std::vector<int64_t> LayoutSpace::replicas(const LayoutChoice& c) const {
  if (c.strategy != Strategy::fsdp2) return {1};
  const int64_t dp = std::max<int64_t>(1, layout_.world / (c.tp * c.pp * c.cp)),
                inside = std::max<int64_t>(1, domain_ / (c.tp * c.cp));
  Values usual{1};
  if (inside > 1 && dp > inside && dp % inside == 0) usual.push_back(dp / inside);
  return sizes(LayoutField::replicas, own_.strategy == Strategy::fsdp2 ? own_.replicas : 1,
               std::move(usual));
}

std::vector<RecomputeGranularity> LayoutSpace::recomputations() const {
  using enum RecomputeGranularity;
  if (!is_free(LayoutField::recompute) && !fixed(LayoutField::recompute)) return {own_.recompute};
  return {none, selective, full};
}

void LayoutSpace::list() {
  const recipe::ModelConfig& m = recipe_.model;
  const int64_t world = layout_.world, experts = m.moe.num_experts;
  const auto tps = sizes(LayoutField::tp, own_.tp, divisors(std::min(domain_, world), domain_));
  const auto pps = sizes(LayoutField::pp, own_.pp, divisors(world, m.num_layers));
  const auto cps =
      sizes(LayoutField::cp, own_.cp,
            powers_of_two(std::min(world, std::max<int64_t>(1, length_ / kLeastTokens))));
  const auto eps = sizes(LayoutField::ep, own_.ep,
                         experts > 0 ? powers_of_two(std::min(experts, world)) : Values{1});
  for (const int64_t tp : tps)
    for (const int64_t pp : pps)
      for (const int64_t cp : cps)
        for (const int64_t ep : eps) {
          LayoutChoice c = own_;
          c.tp = tp, c.pp = pp, c.cp = cp, c.ep = ep;
          list_with_sizes(c);
        }
}

void LayoutSpace::list_with_sizes(LayoutChoice c) {
  for (const Pipeline& p : pipelines(c.pp))
    for (const ContextMethod kind : cp_kinds(c.cp)) {
      c.schedule = p.schedule, c.stages = p.stages, c.cp_kind = kind;
      list_with_pipeline(c);
    }
}

void LayoutSpace::list_with_pipeline(LayoutChoice c) {
  const bool alone = c.pp == 1 && c.ep == 1;
  for (const DataParallel& d : strategies()) {
    const bool own = d.strategy == own_.strategy && d.shards == own_.shards;
    if (!own && d.strategy == Strategy::ddp && (!alone || c.tp > 1 || c.cp > 1)) continue;
    if (!own && d.strategy == Strategy::megatron_fsdp && !alone) continue;
    c.strategy = d.strategy, c.shards = d.shards;
    for (const int64_t replicas : replicas(c))
      for (const int64_t micro_batch :
           sizes(LayoutField::micro_batch, own_.micro_batch, powers_of_two(kMostMicroBatch)))
        for (const RecomputeGranularity recompute : recomputations()) {
          c.replicas = replicas, c.micro_batch = micro_batch, c.recompute = recompute;
          if (allows(c)) choices_.push_back(c);
        }
  }
}

std::optional<Refusal> LayoutSpace::obstacle(const LayoutChoice& c) const {
  const recipe::ModelConfig& m = recipe_.model;
  const int64_t world = layout_.world, ranks = c.tp * c.pp * c.cp, dp = world / ranks,
                batch = recipe_.train.global_batch_size;
  if (world % ranks != 0)
    return Refusal{"sizes do not divide the ranks", [=] {
                     return fmt::format("tp {} x pp {} x cp {} = {} of {} ranks", c.tp, c.pp, c.cp,
                                        ranks, world);
                   }};
  if (m.num_attention_heads % c.tp != 0)
    return Refusal{"tp does not divide the heads", [&m, c] {
                     return fmt::format("tp {} of {} heads", c.tp, m.num_attention_heads);
                   }};
  if (batch % (dp * c.micro_batch) != 0)
    return Refusal{"micro-batches do not divide the batch", [=] {
                     return fmt::format("micro-batches of {} on dp {}, of {} samples",
                                        c.micro_batch, dp, batch);
                   }};
  if (c.pp * c.stages > m.num_layers)
    return Refusal{"more stages than layers", [&m, c] {
                     return fmt::format("{} x {} stages of {} layers", c.pp, c.stages,
                                        m.num_layers);
                   }};
  if (c.replicas > 1 && (dp % c.replicas != 0 || c.replicas == dp))
    return Refusal{"replicas leave nothing to shard",
                   [=] { return fmt::format("{} replicas of dp {}", c.replicas, dp); }};
  if (c.cp > 1 && length_ % (2 * c.cp) != 0)
    return Refusal{"cp does not divide the sequence",
                   [this, c] { return fmt::format("2 x cp {} of {} tokens", c.cp, length_); }};
  if (c.ep > 1 && m.moe.num_experts % c.ep != 0)
    return Refusal{"ep does not divide the experts",
                   [&m, c] { return fmt::format("ep {} of {} experts", c.ep, m.moe.num_experts); }};
  return {};
}

std::vector<std::string> LayoutSpace::strategy_change(const LayoutChoice& c) const {
  std::vector<std::string> out;
  if (c.strategy == own_.strategy && c.shards == own_.shards) return out;
  if (c.strategy != own_.strategy) out = strategy_settings(recipe_, c.strategy);
  if (c.strategy == Strategy::megatron_ddp)
    out.push_back(
        fmt::format("ddp.use_distributed_optimizer={}", c.shards == ShardLevel::optimizer));
  if (c.strategy == Strategy::megatron_fsdp)
    out.push_back(fmt::format("distributed.zero_dp_strategy={}", int(c.shards)));
  if ((c.strategy == Strategy::megatron_fsdp || c.strategy == Strategy::ddp) &&
      recipe_.distributed.sequence_parallel)
    out.emplace_back("distributed.sequence_parallel=false");
  return out;
}

std::vector<std::string> LayoutSpace::size_change(const LayoutChoice& c, const Recipe& base) const {
  Change change;
  const auto set = [&](const std::string& setting) { change.add({.settings = {setting}}); };
  const auto reset = [&](const char* path) {
    if (base.given(path)) set(std::string("~") + path);
  };
  const auto resize = [&](LayoutSize which, int64_t size, int64_t own) {
    if (size != own) change.add({.settings = size_settings(base, which, size)});
  };
  resize(LayoutSize::tp, c.tp, own_.tp);
  resize(LayoutSize::cp, c.cp, own_.cp);
  resize(LayoutSize::ep, c.ep, own_.ep);
  if (c.pp == 1)
    resize(LayoutSize::pp, c.pp, own_.pp);
  else if (c.pp != own_.pp || c.stages != own_.stages || c.schedule != own_.schedule) {
    if (c.pp != own_.pp) set(fmt::format("distributed.pp_size={}", c.pp));
    for (const char* path :
         {"distributed.pipeline.layout", "distributed.pipeline.pp_schedule_csv",
          "distributed.pipeline.layers_per_stage", "distributed.pipeline.first_rank_layers",
          "distributed.pipeline.last_rank_layers",
          "distributed.pipeline.round_virtual_stages_to_pp_multiple",
          "distributed.pipeline.microbatch_group_size_per_vp_stage"})
      reset(path);
    if (c.pp != own_.pp) reset("distributed.dp_size");
    set(fmt::format("distributed.pipeline.pp_schedule={}", enum_name(c.schedule)));
    set(fmt::format("distributed.vpp_size={}", c.stages));
  }
  if (c.cp > 1 && c.cp_kind != own_.cp_kind) {
    reset("distributed.hierarchical_context_parallel_sizes");
    set(fmt::format("distributed.cp_comm_type={}", enum_name(c.cp_kind)));
  }
  if (c.replicas != base.distributed.dp_replicate_size.value_or(1)) {
    if (c.replicas > 1)
      set(fmt::format("distributed.dp_replicate_size={}", c.replicas));
    else
      reset("distributed.dp_replicate_size");
  }
  const bool own_field = base.distributed.pipeline.pp_microbatch_size && c.pp > 1;
  if (c.micro_batch !=
      (own_field ? *base.distributed.pipeline.pp_microbatch_size : base.train.micro_batch_size))
    set(fmt::format(
        "{}={}", own_field ? "distributed.pipeline.pp_microbatch_size" : "train.micro_batch_size",
        c.micro_batch));
  return change.settings;
}

void LayoutSpace::add_recomputation(const LayoutChoice& c, const Recipe& base, Defaults defaults,
                                    std::vector<std::string>& settings) const {
  if (c.recompute == own_.recompute) return;
  if (c.recompute != RecomputeGranularity::full)
    for (const auto& [path, filled] : {std::pair{"recompute.method", !!base.recompute.method},
                                       {"recompute.num_layers", !!base.recompute.num_layers}})
      if (base.given(path) || (defaults == Defaults::stay && filled))
        settings.push_back(std::string("~") + path);
  settings.push_back(fmt::format("recompute.granularity={}", enum_name(c.recompute)));
  if (c.recompute != RecomputeGranularity::full) return;
  settings.emplace_back("recompute.method=uniform");
  settings.emplace_back("recompute.num_layers=1");
}

Change LayoutSpace::change(const LayoutChoice& c) const {
  Change change{.settings = strategy_change(c)};
  Recipe base = recipe_;
  for (const std::string& setting : change.settings) apply(setting, base);
  std::vector<std::string> sizes = size_change(c, base);
  add_recomputation(c, base, Defaults::anew, sizes);
  change.add({.settings = std::move(sizes)});
  return change;
}

const Recipe& LayoutSpace::recipe(const LayoutChoice& c) {
  const DataParallel key{c.strategy, c.shards};
  auto base = std::ranges::find(bases_, key, &Base::key);
  if (base == bases_.end()) {
    Recipe with_strategy = recipe_;
    if (const std::vector<std::string> more = strategy_change(c); !more.empty()) {
      std::vector<std::string> settings = source_.settings;
      settings.insert(settings.end(), more.begin(), more.end());
      Diagnostics ignored;  // mistakes are found when all of a layout's settings are made
      with_strategy = source_.text.empty()
                          ? load_recipe(*source_.models, source_.path, settings, ignored,
                                        source_.world, source_.machine, source_.saved_model)
                          : load_recipe_text(*source_.models, source_.text, source_.path, settings,
                                             ignored, source_.world, source_.machine);
    }
    ChangedRecipe unchanged(with_strategy);
    bases_.push_back({key, std::move(with_strategy), std::move(unchanged)});
    base = bases_.end() - 1;
  }
  if (const LayoutChoice sizes = c.with(own_.recompute); base->sizes != sizes) {
    base->sizes = sizes;
    base->settings = size_change(c, base->recipe);
  }
  std::vector<std::string> settings = base->settings;
  add_recomputation(c, base->recipe, Defaults::stay, settings);
  base->changed.set(settings, base->recipe);
  return base->changed.recipe();
}

int LayoutSpace::distance(const LayoutChoice& c) const {
  int fields = 0;
  for (const LayoutField field : kAllFields) fields += !is_idle(c, field) && !c.same(field, own_);
  return fields;
}

std::string LayoutSpace::text(const LayoutChoice& c) const {
  std::string text;
  for (const LayoutField field : kAllFields)
    if (!is_idle(c, field) && !c.same(field, own_))
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", enum_name(field), c.show(field));
  return text.empty() ? "the recipe" : text;
}

}  // namespace mtrain::plan
