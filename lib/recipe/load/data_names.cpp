#include "recipe/load/data_names.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include "base/strings.h"

namespace mtrain::recipe {
namespace {

bool is_number_node(Node node) {
  double ignored = 0;
  ValueError wrong;
  node.quoted = false;
  return read_value(node, {}, ignored, wrong);
}

// Returns the items of a list, or the words of a text with or without brackets.
std::vector<Node> items_of(const Node& node, std::string_view separators) {
  if (node.kind == Node::Kind::list) return node.items;
  std::string_view rest = trim(node.text);
  if (rest.size() > 1 && (rest.front() == '(' || rest.front() == '[')) {
    rest.remove_prefix(1);
    rest.remove_suffix(1);
  }
  std::vector<Node> items;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find_first_of(separators), rest.size());
    if (end > 0) {
      items.push_back({.kind = Node::Kind::scalar,
                       .text = std::string(rest.substr(0, end)),
                       .location = node.location});
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return items;
}

}  // namespace

std::optional<Blend> read_blend(const Node& node, bool quoted, ValueError& wrong) {
  const bool text = node.kind == Node::Kind::scalar;
  if (!text && node.kind != Node::Kind::list) return std::nullopt;
  std::vector<Node> items = items_of(node, " \t");
  bool in_turn = items.size() >= 2 && items.size() % 2 == 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind != Node::Kind::scalar) return std::nullopt;
    in_turn = in_turn && ((quoted || !items[i].quoted) && is_number_node(items[i])) == (i % 2 == 0);
  }
  if (in_turn) {
    Blend blend;
    for (Node* list : {&blend.prefixes, &blend.shares})
      list->kind = Node::Kind::list, list->location = node.location;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i % 2 == 0) items[i].quoted = false;
      (i % 2 == 0 ? blend.shares : blend.prefixes).items.push_back(std::move(items[i]));
    }
    return blend;
  }
  // A text may be one prefix with blanks. A quoted prefix may look like a number.
  if (text && !(items.size() > 1 && is_number_node(items[0]))) return std::nullopt;
  for (const Node& item : items)
    if (!item.quoted && is_number_node(item)) {
      wrong.reason = fmt::format("the number {} is not the share of a prefix", item.text);
      wrong.hint = "a blend has a share before each prefix: [0.25, a, 0.75, b]";
      break;
    }
  return std::nullopt;
}

void read_split(Node& node) {
  if (node.kind != Node::Kind::scalar || node.unset()) return;
  std::vector<Node> shares = items_of(node, ", ");
  for (const Node& share : shares)
    if (!is_number_node(share)) return;  // the list's reader reports it
  node = {.kind = Node::Kind::list, .location = node.location, .items = std::move(shares)};
}

bool read_window_pair(Node& node, ValueError& wrong) {
  const bool text = node.kind == Node::Kind::scalar && node.text.find(',') != std::string::npos;
  if (!text && node.kind != Node::Kind::list) return true;
  const std::vector<Node> items = items_of(node, ", ");
  int64_t left = 0, right = 0;
  const auto read_integer = [&](Node item, int64_t& out) {
    item.quoted = false;
    return read_value(item, {}, out, wrong);
  };
  const SourceLocation location = node.location;
  if (items.size() != 2 || !read_integer(items[0], left) || !read_integer(items[1], right) ||
      left < -1) {
    wrong.reason = "a window is a number of tokens, or the pair (left, right) of Megatron";
    wrong.hint = "write window_size: 4, or [3, 0] for the same";
    return false;
  }
  if (right > 0) {
    wrong.reason = fmt::format("attention is causal, and this window has {} tokens to come", right);
    wrong.hint = fmt::format("write [{}, 0]", left);
    return false;
  }
  node = {.kind = Node::Kind::scalar,
          .text = left < 0 ? "none" : fmt::format("{}", left + 1),
          .location = location};
  return true;
}

std::string read_stages(const Node& stages, ValueError& wrong) {
  wrong.hint = "write distributed.pipeline.layout, such as Et*4|t*4L";
  std::string layout;
  int64_t next = 0;
  for (const Node& stage : stages.items) {
    std::string text;
    for (const Node& module : stage.items) {
      const std::string_view name =
          std::string_view(module.text).substr(module.text.rfind('.') + 1);  // npos + 1 is 0
      if (name == "embed_tokens" || name == "wte") {
        text.insert(0, "E");
      } else if (name == "lm_head") {
        text += "L";
      } else if (module.text.find("layers.") != std::string::npos) {
        if (name != std::to_string(next++)) {
          wrong.reason = "the layers are not in their order";
          return {};
        }
        text += "t";
      }
    }
    layout += (layout.empty() ? "" : "|") + text;
  }
  if (next > 0) return layout;
  wrong.reason = "no layers are listed";
  return {};
}

// The fp8 formats are those that the classes of Transformer Engine choose.
std::vector<FieldText> read_te_fp8(const Node& node, ValueError& wrong) {
  const std::string_view format = "mixed_precision.fp8", scales = "mixed_precision.fp8_recipe";
  struct Row {
    std::string_view name, of_class;
    std::vector<FieldText> fields;
  };
  const std::vector<Row> rows{
      {"current", "Float8CurrentScaling", {{format, "hybrid"}, {scales, "tensorwise"}}},
      {"block", "Float8BlockScaling", {{format, "e4m3"}, {scales, "blockwise"}}},
      {"mxfp8", "MXFP8BlockScaling", {{format, "e4m3"}, {scales, "mxfp8"}}},
      {"delayed",
       "DelayedScaling",
       {{format, "hybrid"},
        {scales, "delayed"},
        {"mixed_precision.fp8_amax_history_len", "1024"},
        {"mixed_precision.fp8_amax_compute_algo", "max"}}}};
  bool on = true;
  ValueError ignored;
  if (node.unset() || (read_value(node, {}, on, ignored) && !on)) return {};
  std::string name = read_value(node, {}, on, ignored) ? "current" : node.text;
  if (node.kind == Node::Kind::map) name = "current";
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const Node& item = node.items[i];
    if (node.keys[i].name == "_target_") continue;
    const bool of_class = item.keys.size() == 1 && item.keys[0].name == "_target_";
    if (node.keys[i].name != "recipe" || (item.kind != Node::Kind::scalar && !of_class)) {
      wrong.reason = fmt::format("{} is not understood", node.keys[i].name);
      wrong.hint = "write mixed_precision.fp8 and fp8_recipe";
      return {};
    }
    name = of_class ? item.items[0].text : item.text;
  }
  for (const Row& row : rows)
    if (fold_name(row.name) == fold_name(name) || name.ends_with(row.of_class)) return row.fields;
  wrong.reason = fmt::format("the 8-bit recipe `{}` is not supported", name);
  wrong.hint = "the supported ones: current, block, mxfp8, delayed";
  return {};
}

}  // namespace mtrain::recipe
