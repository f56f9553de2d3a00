// Reads and prints comm_overlap.tp_comm_overlap_cfg, which is either a name or a mapping.
#include <algorithm>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/value.h"
#include "recipe/schema/tp_overlap.h"

namespace mtrain::recipe {
namespace {

using Method = TpOverlapMethod;

bool is_all_gather(std::string_view gemm) {
  return gemm == "qkv_fprop" || gemm == "fc1_fprop" || gemm == "proj_dgrad" || gemm == "fc2_dgrad";
}

bool read_preset(const Node& node, TpOverlapConfig& out, ValueError& c) {
  if (find_tp_overlap_preset(node.text)) {
    out = {node.text, {}, {}};
    return true;
  }
  std::vector<std::string> names;
  for (const auto& preset : tp_overlap_presets()) names.emplace_back(preset.name);
  const std::string meant = nearest(node.text, names);
  c.reason = fmt::format("there is no preset `{}`", node.text);
  c.hint = meant.empty()
               ? fmt::format("the presets are named like {}; or give a mapping per GEMM", names[0])
               : fmt::format("did you mean `{}`?", meant);
  return false;
}

bool read_gemm(const std::string& name, const Node& node, TpOverlapGemm& gemm, ValueError& c) {
  struct Key {
    const char* name;
    bool (*read)(const Node&, TpOverlapGemm&, ValueError&);
  };
  static constexpr FieldOptions kCount{.min = 1, .max = 1024};
  static const Key parts[] = {
      {"method", [](const Node& n, auto& g, auto& e) { return read(n, {}, g.method, e); }},
      {"num_sm",
       [](const Node& n, auto& g, auto& e) { return read_value(n, kCount, g.num_sm, e); }},
      {"cga_size",
       [](const Node& n, auto& g, auto& e) { return read_value(n, kCount, g.cga_size, e); }},
      {"num_splits",
       [](const Node& n, auto& g, auto& e) { return read_value(n, kCount, g.num_splits, e); }},
      {"set_sm_margin",
       [](const Node& n, auto& g, auto& e) { return read_value(n, {}, g.set_sm_margin, e); }},
      {"aggregate",
       [](const Node& n, auto& g, auto& e) { return read_value(n, {}, g.aggregate, e); }},
      {"atomic_gemm",
       [](const Node& n, auto& g, auto& e) { return read_value(n, {}, g.atomic_gemm, e); }},
      {"fp8_buf", [](const Node& n, auto& g, auto& e) { return read_value(n, {}, g.fp8_buf, e); }}};
  if (node.kind != Node::Kind::map) {
    c.reason = fmt::format("{}: expected a mapping such as {{method: bulk}}, got {}", name,
                           describe(node));
    return false;
  }
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const auto& key = node.keys[i].name;
    const auto part = std::find_if(std::begin(parts), std::end(parts),
                                   [&](const Key& p) { return key == p.name; });
    if (part == std::end(parts)) {
      std::vector<std::string> names;
      for (const auto& p : parts) names.emplace_back(p.name);
      const std::string meant = nearest(key, names);
      c.reason = fmt::format("{}: there is no key `{}`", name, key);
      c.hint = meant.empty() ? "known are method, num_sm, cga_size, num_splits, set_sm_margin, "
                               "aggregate, atomic_gemm and fp8_buf"
                             : fmt::format("did you mean `{}`?", meant);
      return false;
    }
    if (!part->read(node.items[i], gemm, c)) {
      c.reason = fmt::format("{}.{}: {}", name, key, c.reason);
      return false;
    }
    gemm.num_sm_given = gemm.num_sm_given || key == "num_sm" || key == "set_sm_margin";
    gemm.cga_size_given = gemm.cga_size_given || key == "cga_size";
  }
  if (is_all_gather(name) && gemm.method != Method::ring_exchange) {
    c.reason = fmt::format("{} follows a gather, for which only ring_exchange is possible, not {}",
                           name, enum_name(gemm.method));
    c.hint = "remove the method";
    return false;
  }
  if (name.ends_with("wgrad") && gemm.method != Method::bulk) {
    c.reason = fmt::format(
        "{} has nothing to split: it hides the reduction of the input gradient, "
        "which is bulk, not {}",
        name, enum_name(gemm.method));
    c.hint = "remove the method";
    return false;
  }
  if ((name == "proj_fprop" || name == "fc2_fprop") && gemm.method == Method::bulk) {
    c.reason =
        fmt::format("{} ends in the scatter of its own result, which bulk cannot hide", name);
    c.hint = "use ring_exchange or pipeline";
    return false;
  }
  return true;
}

std::string sm_knobs_text(const TpOverlapGemm& g) {
  std::string text;
  if (g.num_sm_given)
    text = fmt::format("num_sm: {}, set_sm_margin: {}, ", g.num_sm, g.set_sm_margin);
  if (g.cga_size_given) text += fmt::format("cga_size: {}, ", g.cga_size);
  return text;
}

}  // namespace

bool read_value(const Node& node, const FieldOptions&, TpOverlapConfig& out, ValueError& c) {
  if (node.unset()) {
    out = {};
    return true;
  }
  if (node.kind == Node::Kind::scalar) return read_preset(node, out, c);
  if (node.kind != Node::Kind::map) {
    c.reason = fmt::format("expected the name of a preset or a mapping, got {}", describe(node));
    return false;
  }
  out = {};
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const auto& name = node.keys[i].name;
    TpOverlapGemm gemm;
    if (!tp_overlap_default(name, gemm)) {
      const std::string meant = nearest(name, {kTpOverlapGemms.begin(), kTpOverlapGemms.end()});
      c.reason = fmt::format("there is no GEMM `{}`", name);
      c.hint = meant.empty() ? "GEMMs are named qkv_fprop, qkv_dgrad, qkv_wgrad, proj_fprop, ..."
                             : fmt::format("did you mean `{}`?", meant);
      return false;
    }
    if (node.items[i].unset()) {
      out.off.insert(name);
      continue;
    }
    if (!read_gemm(name, node.items[i], gemm, c)) return false;
    out.gemms[name] = gemm;
  }
  for (const char* layer : {"qkv", "fc1"}) {
    const auto dgrad = out.gemms.find(std::string(layer) + "_dgrad");
    if (dgrad == out.gemms.end() || dgrad->second.method == Method::bulk ||
        !out.gemms.count(std::string(layer) + "_wgrad"))
      continue;
    c.reason = fmt::format(
        "{0}_dgrad scatters its own result with {1}, so {0}_wgrad has nothing to "
        "hide",
        layer, enum_name(dgrad->second.method));
    c.hint = fmt::format("remove {}_wgrad, or use bulk for both", layer);
    return false;
  }
  return true;
}

std::string show_value(const TpOverlapConfig& value) {
  if (!value.preset.empty()) return value.preset;
  if (value.empty()) return "none";
  std::string s;
  for (const auto& [name, g] : value.gemms)
    s += fmt::format(
        "{}{}: {{method: {}, {}num_splits: {}, aggregate: {}, atomic_gemm: {}, fp8_buf: {}}}",
        s.empty() ? "" : ", ", name, enum_name(g.method), sm_knobs_text(g), g.num_splits,
        g.aggregate, g.atomic_gemm, g.fp8_buf);
  for (const std::string& name : value.off)
    s += fmt::format("{}{}: none", s.empty() ? "" : ", ", name);
  return "{" + s + "}";
}

}  // namespace mtrain::recipe
