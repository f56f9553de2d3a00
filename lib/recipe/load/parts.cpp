// Applies names that decide only a part of a field's value: one of two decays, whether there is a
// gate, or that a precision is not bf16.
#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "base/error.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

// Megatron's default decays, for a recipe that sets only one of them.
constexpr std::array kMegatronBetas{0.9, 0.999};

bool read_value_text(const SchemaRow& row, std::string_view text, Recipe& r, ValueError& wrong) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  return row.ops->read(node, row.options, row.at(r), wrong);
}

// Returns the activation function of an MLP without its gate; swiglu stands for silu.
Activation function_of(Activation a) { return a == Activation::geglu ? Activation::gelu_tanh : a; }

bool take_function(const RawSetting& part, Recipe& r, ValueError& wrong) {
  Activation named{};
  if (!read(part.node, part.row->options, named, wrong)) return false;
  const bool gated = r.model.gated() || named == Activation::geglu;
  const Activation function = function_of(named);
  // apply_parts() refuses silu without a gate, once the gate is known.
  r.model.activation = !gated || function == Activation::swiglu ? function : Activation::geglu;
  return true;
}

bool take_gate(const RawSetting& part, Recipe& r, ValueError& wrong) {
  bool gate = false;
  if (!read_value(part.node, {}, gate, wrong)) return false;
  Activation& a = r.model.activation;
  if (gate && !r.model.gated()) a = Activation::geglu;
  // Without a gate Megatron's default is gelu.
  if (!gate && r.model.gated())
    a = a == Activation::geglu ? Activation::gelu_tanh : Activation::gelu;
  return true;
}

bool take_toggle(const ForeignSpelling& name, const RawSetting& part, Recipe& r,
                 ValueError& wrong) {
  bool on = false;
  if (!read_value(part.node, {}, on, wrong)) return false;
  const bool is_off = part.row->show(r) == name.off;
  return on != is_off || read_value_text(*part.row, on ? name.on : name.off, r, wrong);
}

bool take_choice(const ForeignSpelling& name, const RawSetting& part, Recipe& r,
                 ValueError& wrong) {
  bool is = false;
  if (!read_value(part.node, {}, is, wrong)) return false;
  if (is) return read_value_text(*part.row, name.on, r, wrong);
  return part.row->show(r) != name.on || read_value_text(*part.row, name.off, r, wrong);
}

bool take(const ForeignSpelling& name, const RawSetting& part, Recipe& r, ValueError& wrong) {
  switch (name.part) {
    case Part::all: break;
    case Part::choice: return take_choice(name, part, r, wrong);
    case Part::toggle: return take_toggle(name, part, r, wrong);
    case Part::beta:
      return read(part.node, part.row->options, r.optimizer.betas[name.path.ends_with('2')], wrong);
    case Part::function: return take_function(part, r, wrong);
    case Part::gate: return take_gate(part, r, wrong);
    case Part::rate:
      return read(part.node, part.row->options, r.model.moe.router_bias_update_rate, wrong);
    case Part::margin:
      return read(part.node, part.row->options, r.launch.layernorm_sm_margin, wrong);
  }
  throw BugError("a part of a field");
}

const RawSetting* find_part(const RawSettings& given, std::string_view path) {
  for (const ForeignSpelling& name : foreign_spellings())
    if (name.path == path && name.part != Part::all)
      if (const auto at = given.fields.find(part_key(name));
          at != given.fields.end() && !at->second.node.unset())
        return &at->second;
  return nullptr;
}

// Whether the settings together mean silu without a gate, which mtrain does not support.
bool is_plain_silu(const RawSettings& given, const Recipe& r) {
  const RawSetting *function = find_part(given, "model.activation_func"),
                   *gate = find_part(given, "model.gated_linear_unit");
  Activation named{};
  ValueError ignored;
  if (!function || !read(function->node, function->row->options, named, ignored)) return false;
  // model.swiglu is stored as a part only if it is false.
  if (named == Activation::swiglu && find_part(given, "model.swiglu")) return true;
  bool gated = r.model.gated();
  if (gate && !read_value(gate->node, {}, gated, ignored)) return false;
  return named == Activation::swiglu && !gated;
}

void note_rate(const RawSettings& given, Diagnostics& diagnostics) {
  const char* toggle = "model.moe_router_enable_expert_bias";
  const RawSetting *rate = find_part(given, "model.moe_router_bias_update_rate"),
                   *on = find_part(given, toggle);
  bool value = true;
  ValueError ignored;
  if (rate && on && read_value(on->node, {}, value, ignored) && !value)
    diagnostics.add_at(Severity::resolved, rate->location, rate->spelling,
                       fmt::format("has no effect, for {} is false", toggle));
}

// Norms leave the same number of multiprocessors free in forward and in backward.
void join_margins(const RawSettings& given, Recipe& r, Diagnostics& diagnostics) {
  const RawSetting *forward = find_part(given, "env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN"),
                   *backward = find_part(given, "env_vars.NVTE_BWD_LAYERNORM_SM_MARGIN");
  if (!forward || !backward) return;
  const FieldOptions& options = forward->row->options;
  int64_t f = 0, b = 0;
  ValueError ignored;
  if (!read_value(forward->node, options, f, ignored) ||
      !read_value(backward->node, options, b, ignored) || f == b)
    return;
  r.launch.layernorm_sm_margin = std::max(f, b);
  diagnostics.add_at(
      Severity::warning, backward->location, forward->row->path,
      fmt::format("{}, the larger of {} in forward and {} in backward (NVTE_FWD_ and "
                  "NVTE_BWD_LAYERNORM_SM_MARGIN): norms have one margin for both",
                  std::max(f, b), f, b));
}

}  // namespace

bool same_value(const RawSetting& a, const RawSetting& b) {
  Recipe x, y;
  ValueError c;
  if (!a.row->ops->read(a.node, a.row->options, a.row->at(x), c) ||
      !b.row->ops->read(b.node, b.row->options, b.row->at(y), c))
    return a.node.text == b.node.text;  // such as ${...}, or a mistake that is reported later
  return a.row->show(x) == b.row->show(y);
}

bool same_part(const ForeignSpelling& name, const RawSetting& part, const RawSetting& whole) {
  for (const RawSetting* setting : {&part, &whole})
    if (setting->node.unset() || setting->node.text.find("${") != std::string::npos) return true;
  Recipe r;
  ValueError ignored;
  if (!whole.row->ops->read(whole.node, whole.row->options, whole.row->at(r), ignored)) return true;
  const std::string before = whole.row->show(r);
  // silu without a gate is also printed as swiglu.
  const bool gated = r.model.gated();
  return !take(name, part, r, ignored) ||
         (whole.row->show(r) == before && r.model.gated() == gated);
}

void apply_parts(const RawSettings& given, Recipe& recipe, Diagnostics& diagnostics) {
  const bool plain_silu = is_plain_silu(given, recipe);
  for (const ForeignSpelling& name : foreign_spellings()) {
    const auto at = name.part == Part::all ? given.fields.end() : given.fields.find(part_key(name));
    if (at == given.fields.end() || at->second.node.unset()) continue;
    const RawSetting& part = at->second;
    const std::string& path = part.row->path;
    if (name.part == Part::beta && !recipe.spellings.contains(path))
      recipe.optimizer.betas = kMegatronBetas;
    const std::string before = part.row->show(recipe);
    ValueError wrong;
    if (!take(name, part, recipe, wrong)) {
      diagnostics.add_at(Severity::error, part.location, path,
                         fmt::format("{} (written as {})", wrong.reason, part.spelling),
                         wrong.hint);
      continue;
    }
    const auto folder = recipe.spellings.find(path);
    const bool changed = part.row->show(recipe) != before;
    if (changed && folder != recipe.spellings.end() && folder->second == "model.from")
      diagnostics.add_at(Severity::error, part.location, path,
                         fmt::format("is {} by {}, but the folder of model.from says {}",
                                     part.row->show(recipe), part.spelling, before),
                         "remove one of the two");
    // A choice that is false does not decide a field that has a different value.
    if (name.part == Part::choice && !changed) continue;
    recipe.origins[path] = part.origin;
    recipe.spellings[path] = part.spelling;
  }
  if (plain_silu) {
    const RawSetting& function = *find_part(given, "model.activation_func");
    diagnostics.add_at(Severity::error, function.location, "model.activation",
                       "silu without a gate is not supported",
                       "set model.gated_linear_unit: true, which is swiglu; or gelu");
  }
  note_rate(given, diagnostics);
  join_margins(given, recipe, diagnostics);
}

}  // namespace mtrain::recipe
