#include "recipe/load/list_expression.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "base/strings.h"

namespace mtrain::recipe {
namespace {

constexpr size_t kMaxItems = 100000;  // the maximum of model.num_layers

// Reads sum = product {"+" product}, product = ("(" sum ")" | list) ["*" number].
class ListExpression {
 public:
  explicit ListExpression(std::string_view text) : rest_(text) {}

  // Returns the texts of the items; nothing if the text is not such a sum.
  std::optional<std::vector<std::string>> read() {
    auto items = sum();
    skip_blanks();
    return rest_.empty() ? items : std::nullopt;
  }

 private:
  using Items = std::optional<std::vector<std::string>>;

  Items sum() {
    Items all = product();
    while (all && take('+')) {
      const Items more = product();
      if (!more || all->size() + more->size() > kMaxItems) return {};
      all->insert(all->end(), more->begin(), more->end());
    }
    return all;
  }

  Items product() {
    Items once;
    if (take('(')) {
      // Limits the depth of the recursion.
      if (++depth_ > 20) return {};
      once = sum();
      if (!take(')')) return {};
      --depth_;
    } else if (take('[')) {
      once = list();
    }
    if (!once || !take('*')) return once;
    skip_blanks();
    size_t times = 0;
    const auto [stop, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), times);
    if (error != std::errc() || times > kMaxItems || once->size() * times > kMaxItems) return {};
    rest_.remove_prefix(size_t(stop - rest_.data()));
    std::vector<std::string> all;
    for (size_t i = 0; i < times; ++i) all.insert(all.end(), once->begin(), once->end());
    return all;
  }

  Items list() {
    const size_t end = rest_.find(']');
    if (end == std::string_view::npos) return {};
    std::vector<std::string> items;
    for (std::string_view inside = rest_.substr(0, end); !trim(inside).empty();) {
      const size_t comma = std::min(inside.find(','), inside.size());
      items.emplace_back(trim(inside.substr(0, comma)));
      inside.remove_prefix(std::min(comma + 1, inside.size()));
    }
    rest_.remove_prefix(end + 1);
    return items;
  }

  bool take(char c) {
    skip_blanks();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void skip_blanks() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }

  std::string_view rest_;
  int depth_ = 0;
};

}  // namespace

void expand_list_expression(Node& node) {
  if (node.kind != Node::Kind::scalar) return;
  const auto items = ListExpression(node.text).read();
  if (!items) return;
  const SourceLocation location = node.location;
  node = {.kind = Node::Kind::list, .location = location};
  for (const std::string& text : *items)
    node.items.push_back({.kind = Node::Kind::scalar, .text = text, .location = location});
}

}  // namespace mtrain::recipe
