#include "recipe/adapters.h"

#include <algorithm>
#include <string_view>

#include "recipe/schema/model.h"
#include "recipe/schema/peft.h"

namespace mtrain::recipe {

namespace {

using spec::Projection;

// A linear, or one of the weights that are stacked in a linear.
struct Module {
  Projection projection;
  const char* parent;  // the module of the layer that holds it
  const char* name;
  // Other weights stacked under one adapter, or a part of what the family has as one linear: only
  // its own name chooses it.
  bool fused;
  // A matrix of each expert. The module `experts` stands for all of them, and only patterns that
  // match it, or name it in their text, choose them.
  bool routed = false;
};

constexpr Module kAttention[]{{Projection::query, "self_attn", "q_proj", false},
                              {Projection::key, "self_attn", "k_proj", false},
                              {Projection::value, "self_attn", "v_proj", false},
                              {Projection::proj, "self_attn", "o_proj", false},
                              {Projection::qkv, "self_attn", "qkv_proj", true},
                              {Projection::qkv, "self_attention", "linear_qkv", true},
                              {Projection::proj, "self_attention", "linear_proj", true}};
// Families that keep q, k and v, or gate and up, in one linear.
constexpr Module kFusedAttention[]{{Projection::qkv, "self_attn", "qkv_proj", false},
                                   {Projection::proj, "self_attn", "o_proj", false},
                                   {Projection::query, "self_attn", "q_proj", true},
                                   {Projection::key, "self_attn", "k_proj", true},
                                   {Projection::value, "self_attn", "v_proj", true},
                                   {Projection::qkv, "self_attention", "linear_qkv", true},
                                   {Projection::proj, "self_attention", "linear_proj", true}};
// Latent attention. The linear of the queries has another name if they have a latent.
constexpr Module kLatentAttention[]{
    {Projection::latent_down, "self_attn", "kv_a_proj_with_mqa", false},
    {Projection::latent_up, "self_attn", "kv_b_proj", false},
    {Projection::proj, "self_attn", "o_proj", false},
    {Projection::latent_down, "self_attention", "linear_kv_down_proj", true},
    {Projection::latent_up, "self_attention", "linear_kv_up_proj", true},
    {Projection::proj, "self_attention", "linear_proj", true}};
constexpr Module kQueries[]{{Projection::query, "self_attn", "q_proj", false},
                            {Projection::query, "self_attention", "linear_q_proj", true}};
constexpr Module kLatentQueries[]{
    {Projection::query_down, "self_attn", "q_a_proj", false},
    {Projection::query, "self_attn", "q_b_proj", false},
    {Projection::query_down, "self_attention", "linear_q_down_proj", true},
    {Projection::query, "self_attention", "linear_q_up_proj", true}};
constexpr Module kFusedMlp[]{{Projection::gate_up, "mlp", "gate_up_proj", false},
                             {Projection::down, "mlp", "down_proj", false},
                             {Projection::gate, "mlp", "gate_proj", true},
                             {Projection::up, "mlp", "up_proj", true},
                             {Projection::gate_up, "mlp", "linear_fc1", true},
                             {Projection::down, "mlp", "linear_fc2", true}};
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

// Families call the shared expert by either name.
constexpr Module kSharedExpert[]{{Projection::gate, "mlp.shared_expert", "gate_proj", false},
                                 {Projection::up, "mlp.shared_expert", "up_proj", false},
                                 {Projection::down, "mlp.shared_expert", "down_proj", false},
                                 {Projection::gate, "mlp.shared_experts", "gate_proj", false},
                                 {Projection::up, "mlp.shared_experts", "up_proj", false},
                                 {Projection::down, "mlp.shared_experts", "down_proj", false},
                                 {Projection::gate_up, "mlp.shared_experts", "linear_fc1", true},
                                 {Projection::down, "mlp.shared_experts", "linear_fc2", true}};
constexpr const char* kExperts = "experts";
constexpr Module kRoutedExperts[]{
    {Projection::expert_gate_up, "mlp.experts", "gate_up_proj", false, true},
    {Projection::expert_down, "mlp.experts", "down_proj", false, true},
    {Projection::expert_gate_up, "mlp.experts", "linear_fc1", true},
    {Projection::expert_down, "mlp.experts", "linear_fc2", true}};

std::vector<Module> modules_of(const spec::LayerSpec& layer, Architecture family) {
  const bool fused_mlp = family == Architecture::phi3,
             fused_attention = fused_mlp || family == Architecture::gpt2;
  std::vector<Module> all;
  if (const auto& latent = layer.grouped().latent) {
    if (latent->q_rank > 0)
      all.assign(std::begin(kLatentQueries), std::end(kLatentQueries));
    else
      all.assign(std::begin(kQueries), std::end(kQueries));
    all.insert(all.end(), std::begin(kLatentAttention), std::end(kLatentAttention));
  } else if (fused_attention)
    all.assign(std::begin(kFusedAttention), std::end(kFusedAttention));
  else
    all.assign(std::begin(kAttention), std::end(kAttention));
  if (const spec::Experts* experts = layer.experts()) {
    if (experts->shared_ffn > 0)
      all.insert(all.end(), std::begin(kSharedExpert), std::end(kSharedExpert));
    all.insert(all.end(), std::begin(kRoutedExperts), std::end(kRoutedExperts));
  }
  const auto* mlp = std::get_if<spec::DenseMlp>(&layer.mlp);
  if (mlp && mlp->gated() && fused_mlp)
    all.insert(all.end(), std::begin(kFusedMlp), std::end(kFusedMlp));
  else if (mlp && mlp->gated())
    all.insert(all.end(), std::begin(kGatedMlp), std::end(kGatedMlp));
  else if (mlp)
    all.insert(all.end(), std::begin(kPlainMlp), std::end(kPlainMlp));
  return all;
}

// Whether `pattern`, in which * stands for any text, is all of `text`. A mismatch extends the text
// of the last * alone, so the work is at most the product of the lengths.
bool matches_all(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resumed = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, resumed = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++resumed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Whether the pattern names this module. A name without a dot is that of the module, and others are
// paths, which may begin at any module.
bool names_module(const std::string& pattern, const Module& m, int64_t layer) {
  const bool name_alone = pattern.find('.') == std::string::npos;
  const auto matches = [&](const std::string& path) {
    return matches_all(pattern, path) || matches_all("*." + pattern, path);
  };
  const std::string parent = "model.layers." + std::to_string(layer) + "." + m.parent;
  if (m.routed) {
    if (name_alone) return matches_all(pattern, kExperts);
    if (matches(parent)) return true;
    if (pattern.find(kExperts) == std::string::npos) return false;
  }
  return name_alone ? matches_all(pattern, m.name) : matches(parent + "." + m.name);
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
                                 const spec::ModelSpec& model, Architecture family) {
  std::vector<Pattern> patterns;
  for (const std::string& text : texts) {
    Pattern p{text};
    if (text.find('*') != std::string::npos)
      for (int64_t i = 0; i < model.main_layers(); ++i)
        for (const Module& m : modules_of(model.layer(i), family))
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
                              Architecture family, int64_t layer) {
  std::vector<Projection> all;
  for (const Module& m : modules_of(spec, family))
    if (any_matches(patterns, m, layer)) add_once(all, m.projection);
  return all;
}

// The projections of a layer that get adapters, and those that are only partly excluded.
struct Chosen {
  std::vector<Projection> projections, split;
};

Chosen choose_projections(const PeftConfig& peft, const std::vector<Pattern>& targets,
                          const std::vector<Pattern>& excluded, const spec::LayerSpec& spec,
                          Architecture family, int64_t layer) {
  Chosen c;
  if (peft.match_all_linear || targets.empty()) {
    for (const Module& m : modules_of(spec, family))
      if (!m.fused && !m.routed) add_once(c.projections, m.projection);
  } else {
    c.projections = named(targets, spec, family, layer);
  }
  // One adapter of a fused linear takes the place of those of its parts.
  const std::vector<Projection> given = c.projections;
  for (const Projection fused : given)
    for (const Projection part : parts_of(fused)) std::erase(c.projections, part);
  for (const Projection p : named(excluded, spec, family, layer)) {
    std::erase(c.projections, p);
    for (const Projection part : parts_of(p)) std::erase(c.projections, part);
    for (const Projection fused : c.projections)
      if (std::ranges::count(parts_of(fused), p)) add_once(c.split, fused);
  }
  return c;
}

}  // namespace

std::optional<spec::Lora> adapters_of(const PeftConfig& peft, const ModelConfig& config,
                                      const spec::ModelSpec& model) {
  if (!peft.on()) return {};
  const Architecture family = config.architecture;
  const spec::Experts* experts = model.experts();
  const int64_t divisor = peft.moe_rank_scaling && experts ? experts->per_token : 1;
  spec::Lora lora{.dim = peft.dim,
                  .expert_dim = std::max<int64_t>(1, peft.dim / divisor),
                  .alpha = peft.alpha,
                  .dropout = peft.dropout,
                  .layers = {}};
  const std::vector<Pattern> targets = patterns_of(peft.target_modules, model, family),
                             excluded = patterns_of(peft.exclude_modules, model, family);
  for (int64_t i = 0; i < model.main_layers(); ++i)
    lora.layers.push_back(
        choose_projections(peft, targets, excluded, model.layer(i), family, i).projections);
  lora.layers.resize(size_t(model.layer_count()));
  return lora;
}

std::vector<std::string> unmatched_modules(const std::vector<std::string>& texts,
                                           const ModelConfig& config,
                                           const spec::ModelSpec& model) {
  const Architecture family = config.architecture;
  std::vector<std::string> unmatched;
  for (const Pattern& p : patterns_of(texts, model, family)) {
    bool used = false;
    for (int64_t i = 0; i < model.main_layers() && !used; ++i)
      for (const Module& m : modules_of(model.layer(i), family)) used = used || p.matches(m, i);
    if (!used) unmatched.push_back(p.text);
  }
  return unmatched;
}

std::vector<std::string> split_modules(const PeftConfig& peft, const ModelConfig& config,
                                       const spec::ModelSpec& model) {
  const Architecture family = config.architecture;
  const std::vector<Pattern> targets = patterns_of(peft.target_modules, model, family),
                             excluded = patterns_of(peft.exclude_modules, model, family);
  std::vector<std::string> split;
  for (int64_t i = 0; i < model.main_layers(); ++i)
    for (const Projection p :
         choose_projections(peft, targets, excluded, model.layer(i), family, i).split)
      for (const Module& m : modules_of(model.layer(i), family))
        if (m.projection == p && any_matches(targets, m, i) && !std::ranges::count(split, m.name))
          split.emplace_back(m.name);
  return split;
}

std::vector<std::string> adaptable_modules(const ModelConfig& config,
                                           const spec::ModelSpec& model) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < model.main_layers(); ++i)
    for (const Module& m : modules_of(model.layer(i), config.architecture)) {
      const char* const name = m.routed ? kExperts : m.name;
      if (!std::ranges::count(names, name)) names.emplace_back(name);
    }
  return names;
}

}  // namespace mtrain::recipe
