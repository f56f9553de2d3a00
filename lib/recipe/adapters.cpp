#include "recipe/adapters.h"

#include <algorithm>
#include <string_view>

#include "recipe/schema/peft.h"

namespace mtrain::recipe {

namespace {

using spec::Projection;

// A linear, or one of the weights that are stacked in a linear.
struct Module {
  Projection projection;
  const char* parent;  // the module of the layer that holds it
  const char* name;
  bool fused;  // several weights of another name under one adapter; only its own name chooses it
};

constexpr Module kAttention[]{{Projection::query, "self_attn", "q_proj", false},
                              {Projection::key, "self_attn", "k_proj", false},
                              {Projection::value, "self_attn", "v_proj", false},
                              {Projection::proj, "self_attn", "o_proj", false},
                              {Projection::qkv, "self_attn", "qkv_proj", true},
                              {Projection::qkv, "self_attention", "linear_qkv", true},
                              {Projection::proj, "self_attention", "linear_proj", true}};
constexpr Module kGatedMlp[]{{Projection::gate, "mlp", "gate_proj", false},
                             {Projection::up, "mlp", "up_proj", false},
                             {Projection::down, "mlp", "down_proj", false},
                             {Projection::gate_up, "mlp", "gate_up_proj", true},
                             {Projection::gate_up, "mlp", "linear_fc1", true},
                             {Projection::down, "mlp", "linear_fc2", true}};
constexpr Module kPlainMlp[]{{Projection::up, "mlp", "up_proj", false},
                             {Projection::down, "mlp", "down_proj", false},
                             {Projection::up, "mlp", "linear_fc1", true},
                             {Projection::down, "mlp", "linear_fc2", true}};

std::vector<Module> modules_of(const spec::LayerSpec& layer) {
  std::vector<Module> all(std::begin(kAttention), std::end(kAttention));
  const auto* mlp = std::get_if<spec::DenseMlp>(&layer.mlp);
  if (mlp && mlp->gated())
    all.insert(all.end(), std::begin(kGatedMlp), std::end(kGatedMlp));
  else if (mlp)
    all.insert(all.end(), std::begin(kPlainMlp), std::end(kPlainMlp));
  return all;
}

// Whether `pattern`, in which * stands for any text, is all of `text`.
bool matches_all(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() != '*')
    return !text.empty() && pattern.front() == text.front() &&
           matches_all(pattern.substr(1), text.substr(1));
  for (size_t skipped = 0; skipped <= text.size(); ++skipped)
    if (matches_all(pattern.substr(1), text.substr(skipped))) return true;
  return false;
}

// Whether the pattern names this module. A name without a dot is that of the module, and others are
// paths, which may begin at any module.
bool names_module(const std::string& pattern, const Module& m, int64_t layer) {
  if (pattern.find('.') == std::string::npos) return matches_all(pattern, m.name);
  const std::string path = "model.layers." + std::to_string(layer) + "." + m.parent + "." + m.name;
  return matches_all(pattern, path) || matches_all("*." + pattern, path);
}

// A pattern of a list. If a * chooses weights that are stacked in a linear, it does not choose the
// linear by its other name beside them.
struct Pattern {
  std::string text;
  bool never_fused = false;

  bool matches(const Module& m, int64_t layer) const {
    return !(m.fused && never_fused) && names_module(text, m, layer);
  }
};

std::vector<Pattern> patterns_of(const std::vector<std::string>& texts,
                                 const spec::ModelSpec& model) {
  std::vector<Pattern> patterns;
  for (const std::string& text : texts) {
    Pattern p{text};
    if (text.find('*') != std::string::npos)
      for (int64_t i = 0; i < model.layer_count(); ++i)
        for (const Module& m : modules_of(model.layer(i)))
          p.never_fused = p.never_fused || (!m.fused && names_module(text, m, i));
    patterns.push_back(std::move(p));
  }
  return patterns;
}

bool any_matches(const std::vector<Pattern>& patterns, const Module& m, int64_t layer) {
  return std::ranges::any_of(patterns, [&](const Pattern& p) { return p.matches(m, layer); });
}

std::vector<Projection> parts_of(Projection p) {
  if (p == Projection::qkv) return {Projection::query, Projection::key, Projection::value};
  if (p == Projection::gate_up) return {Projection::gate, Projection::up};
  return {};
}

void add_once(std::vector<Projection>& all, Projection p) {
  if (!std::ranges::count(all, p)) all.push_back(p);
}

// Returns the projections of a layer that any of the patterns names, in the order of the layer.
std::vector<Projection> named(const std::vector<Pattern>& patterns, const spec::LayerSpec& spec,
                              int64_t layer) {
  std::vector<Projection> all;
  for (const Module& m : modules_of(spec))
    if (any_matches(patterns, m, layer)) add_once(all, m.projection);
  return all;
}

// The projections of a layer that get adapters, and those that are only partly excluded.
struct Chosen {
  std::vector<Projection> projections, split;
};

Chosen choose_projections(const PeftConfig& peft, const std::vector<Pattern>& targets,
                          const std::vector<Pattern>& excluded, const spec::LayerSpec& spec,
                          int64_t layer) {
  Chosen c;
  if (peft.match_all_linear || targets.empty()) {
    for (const Module& m : modules_of(spec))
      if (!m.fused) add_once(c.projections, m.projection);
  } else {
    c.projections = named(targets, spec, layer);
  }
  // One adapter of a fused linear takes the place of those of its parts.
  const std::vector<Projection> given = c.projections;
  for (const Projection fused : given)
    for (const Projection part : parts_of(fused)) std::erase(c.projections, part);
  for (const Projection p : named(excluded, spec, layer)) {
    std::erase(c.projections, p);
    for (const Projection part : parts_of(p)) std::erase(c.projections, part);
    for (const Projection fused : c.projections)
      if (std::ranges::count(parts_of(fused), p)) add_once(c.split, fused);
  }
  return c;
}

}  // namespace

std::optional<spec::Lora> adapters_of(const PeftConfig& peft, const spec::ModelSpec& model) {
  if (!peft.on()) return {};
  spec::Lora lora{.dim = peft.dim, .alpha = peft.alpha, .dropout = peft.dropout, .layers = {}};
  const std::vector<Pattern> targets = patterns_of(peft.target_modules, model),
                             excluded = patterns_of(peft.exclude_modules, model);
  for (int64_t i = 0; i < model.layer_count(); ++i)
    lora.layers.push_back(
        choose_projections(peft, targets, excluded, model.layer(i), i).projections);
  return lora;
}

std::vector<std::string> unmatched_modules(const std::vector<std::string>& texts,
                                           const spec::ModelSpec& model) {
  std::vector<std::string> unmatched;
  for (const Pattern& p : patterns_of(texts, model)) {
    bool used = false;
    for (int64_t i = 0; i < model.layer_count() && !used; ++i)
      for (const Module& m : modules_of(model.layer(i))) used = used || p.matches(m, i);
    if (!used) unmatched.push_back(p.text);
  }
  return unmatched;
}

std::vector<std::string> split_modules(const PeftConfig& peft, const spec::ModelSpec& model) {
  const std::vector<Pattern> targets = patterns_of(peft.target_modules, model),
                             excluded = patterns_of(peft.exclude_modules, model);
  std::vector<std::string> split;
  for (int64_t i = 0; i < model.layer_count(); ++i)
    for (const Projection p : choose_projections(peft, targets, excluded, model.layer(i), i).split)
      for (const Module& m : modules_of(model.layer(i)))
        if (m.projection == p && any_matches(targets, m, i) && !std::ranges::count(split, m.name))
          split.emplace_back(m.name);
  return split;
}

std::vector<std::string> adaptable_modules(const spec::ModelSpec& model) {
  std::vector<std::string> names;
  for (const spec::LayerSpec& layer : model.layers)
    for (const Module& m : modules_of(layer))
      if (!std::ranges::count(names, m.name)) names.emplace_back(m.name);
  return names;
}

}  // namespace mtrain::recipe
