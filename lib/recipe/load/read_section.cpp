#include "recipe/load/read_section.h"

#include <fmt/core.h>

#include "base/strings.h"

namespace mtrain::recipe::section {

namespace {

class SectionReader {
 public:
  SectionReader(const std::vector<Row>& rows, Diagnostics& diagnostics)
      : rows_(rows), diagnostics_(diagnostics) {}

  void read(const std::string& prefix, const Node& node) {
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const std::string path = prefix + node.keys[i].name;
      const auto row = std::ranges::find(rows_, path, &Row::path);
      if (row == rows_.end())
        unknown(prefix, path, node.keys[i]);
      else
        value(*row, node.keys[i].location, node.items[i]);
    }
  }

 private:
  void value(const Row& row, const SourceLocation& location, const Node& node) {
    diagnostics_.set_location(row.path, location);
    if (row.ops) {
      const TypeInfo info = row.ops->info();
      if (node.unset() && !info.may_be_none && !info.may_be_auto) return;  // the default stays
      ValueError wrong;
      if (!row.ops->read(node, row.options, row.value, wrong))
        diagnostics_.add_at(Severity::error, location, row.path, wrong.reason, wrong.hint);
    } else if (node.kind == Node::Kind::map) {
      read(row.path + ".", node);
    } else if (node.kind == Node::Kind::scalar && !row.options.shorthand.empty()) {
      const std::string leaf = row.path + "." + std::string(row.options.shorthand);
      value(*std::ranges::find(rows_, leaf, &Row::path), location, node);
    } else if (!node.unset()) {
      diagnostics_.add_at(Severity::error, location, row.path,
                          fmt::format("is a section of several keys, got {}", describe(node)),
                          "its keys are: " + keys_of(row.path + "."));
    }
  }

  void unknown(const std::string& prefix, const std::string& path, const Node::Key& key) {
    // A key of the same name in another section; otherwise the nearest one of the same section.
    std::vector<std::string> siblings;
    std::string elsewhere;
    for (const Row& row : rows_) {
      const size_t dot = row.path.rfind('.');
      const std::string last = dot == std::string::npos ? row.path : row.path.substr(dot + 1);
      if (row.path == prefix + last) siblings.push_back(last);
      if (last == key.name) elsewhere = row.path;
    }
    const std::string near = nearest(key.name, siblings);
    diagnostics_.add_at(Severity::error, key.location, path, "there is no such key",
                        !elsewhere.empty() ? fmt::format("did you mean {}?", elsewhere)
                        : !near.empty()    ? fmt::format("did you mean {}?", prefix + near)
                                           : "the keys are: " + keys_of(prefix));
  }

  std::string keys_of(const std::string& prefix) const {
    std::string keys;
    for (const Row& row : rows_)
      if (row.path.starts_with(prefix) && row.path.find('.', prefix.size()) == std::string::npos)
        keys += (keys.empty() ? "" : ", ") + row.path.substr(prefix.size());
    return keys;
  }

  const std::vector<Row>& rows_;
  Diagnostics& diagnostics_;
};

}  // namespace

void read_rows(const Node& root, const std::vector<Row>& rows, Diagnostics& diagnostics) {
  if (root.unset()) return;  // an empty file
  if (root.kind != Node::Kind::map) {
    diagnostics.add_at(Severity::error, root.location, "",
                       fmt::format("expected keys and values, got {}", describe(root)));
    return;
  }
  SectionReader(rows, diagnostics).read("", root);
}

}  // namespace mtrain::recipe::section
