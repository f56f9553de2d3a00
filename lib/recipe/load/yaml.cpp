#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <unordered_map>

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "base/strings.h"
#include "recipe/load/node.h"
#include "recipe/load/value.h"
#include "recipe/load/yaml_faults.h"

namespace mtrain::recipe {

bool Node::unset() const {
  if (kind == Kind::null) return true;
  return kind == Kind::scalar && !quoted &&
         (text == "none" || text == "None" || text == "null" || text == "Null" || text == "NULL" ||
          text == "~" || text.empty());
}

namespace {

constexpr size_t kMaxBytes = 1 << 20, kMaxNodes = 20000, kMaxNesting = 32;

struct Refused {};  // thrown for a tree that cannot be built, after the reason has been reported

// A tag decides how a scalar is read: as a text, as null, or by its appearance.
struct ScalarTag {
  std::string_view name;
  bool text = false, null = false;
  bool (*is)(const std::string& value) = nullptr;
};
// A reference passes these checks, because its value is not known yet.
bool is_integer(const std::string& value) {
  return value.find("${") != std::string::npos || is_integer_text(value);
}
bool is_number(const std::string& value) {
  Node node{.kind = Node::Kind::scalar, .text = value};
  double number = 0;
  ValueError ignored;
  return value.find("${") != std::string::npos || read_value(node, {}, number, ignored);
}
bool is_truth(const std::string& value) {
  Node node{.kind = Node::Kind::scalar, .text = value};
  bool truth = false;
  ValueError ignored;
  return value.find("${") != std::string::npos || read_value(node, {}, truth, ignored);
}

constexpr ScalarTag kScalarTags[] = {{.name = "?"},
                                     {.name = "!", .text = true},
                                     {.name = "tag:yaml.org,2002:str", .text = true},
                                     {.name = "tag:yaml.org,2002:int", .is = is_integer},
                                     {.name = "tag:yaml.org,2002:float", .is = is_number},
                                     {.name = "tag:yaml.org,2002:bool", .is = is_truth},
                                     {.name = "tag:yaml.org,2002:null", .null = true}};

// Returns a tag as it is written: !!float.
std::string shown_tag(const std::string& tag) {
  constexpr std::string_view kYaml = "tag:yaml.org,2002:";
  return tag.starts_with(kYaml) ? "!!" + tag.substr(kYaml.size()) : tag;
}

// Replaces ~/ at the start of a text by the user's home folder. Shells do this at the start of a
// word, but not within `dataset.train=~/x`.
std::string expand_home(const std::string& text) {
  const char* home = text.starts_with("~/") ? std::getenv("HOME") : nullptr;
  return home && *home ? home + text.substr(1) : text;
}

// Builds the tree from parser events: only they carry the place of a key, tell quoted scalars from
// plain ones and let aliases be expanded under a limit.
class Builder : public YAML::EventHandler {
 public:
  Builder(std::string source, Diagnostics& diagnostics)
      : source_(std::move(source)), diagnostics_(diagnostics) {}

  Node root;
  int documents = 0;
  SourceLocation second_document;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents == 2) second_document = location(mark);
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    leaf(mark, anchor, Node::Kind::null, "", false);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const ScalarTag* known = std::ranges::find(kScalarTags, tag, &ScalarTag::name);
    if (known == std::end(kScalarTags)) return unknown_tag(mark, tag, anchor);
    if (known->null) return leaf(mark, anchor, Node::Kind::null, "", false);
    leaf(mark, anchor, Node::Kind::scalar, expand_home(value), known->text);
    if (known->is && !known->is(value))
      diagnostics_.add_at(Severity::error, location(mark), "",
                          fmt::format("`{}` is not what its tag {} says", value, shown_tag(tag)),
                          "leave the tag out");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto at = anchors_.find(anchor);
    if (at == anchors_.end()) {
      diagnostics_.add_at(Severity::error, location(mark), "",
                          "an alias stands inside its own anchor");
      throw Refused{};
    }
    Node copy = at->second;
    reserve(count_nodes(copy), mark);
    add(std::move(copy));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    // PyYAML writes tuples with a tag of their own.
    check_tag(mark, tag, {"tag:yaml.org,2002:seq", "tag:yaml.org,2002:python/tuple"});
    open(mark, anchor, Node::Kind::list);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_tag(mark, tag, {"tag:yaml.org,2002:map"});
    open(mark, anchor, Node::Kind::map);
  }
  void OnMapEnd() override {
    merge(open_.back().node);
    close();
  }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // the next node is a value
    bool skip = false;     // the next value belongs to a repeated key
  };

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    diagnostics_.add_at(Severity::error, location(mark), "",
                        fmt::format("the tag {} means nothing in a recipe", shown_tag(tag)),
                        "leave it out; known are !!str, !!int, !!float, !!bool and !!null");
  }
  void unknown_tag(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_tag(mark, tag);
    leaf(mark, anchor, Node::Kind::null, "", false);
  }
  void check_tag(const YAML::Mark& mark, const std::string& tag,
                 std::initializer_list<std::string_view> known) {
    if (tag != "?" && tag != "!" && !tag.empty() && std::ranges::count(known, tag) == 0)
      refuse_tag(mark, tag);
  }

  SourceLocation location(const YAML::Mark& mark) const {
    return {source_, mark.line + 1, mark.column + 1};
  }

  void reserve(size_t nodes, const YAML::Mark& mark) {
    nodes_ += nodes;
    if (nodes_ <= kMaxNodes) return;
    diagnostics_.add_at(
        Severity::error, location(mark), "",
        fmt::format("the recipe expands to more than {} values", kMaxNodes),
        "anchors and aliases that refer to each other multiply; write the values out");
    throw Refused{};
  }

  void leaf(const YAML::Mark& mark, YAML::anchor_t anchor, Node::Kind kind, const std::string& text,
            bool quoted) {
    reserve(1, mark);
    Node node;
    node.kind = kind, node.text = text, node.quoted = quoted, node.location = location(mark);
    if (anchor) anchors_[anchor] = node;
    add(std::move(node));
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, Node::Kind kind) {
    reserve(1, mark);
    if (open_.size() >= kMaxNesting) {
      diagnostics_.add_at(Severity::error, location(mark), "",
                          fmt::format("values are nested more than {} deep", kMaxNesting));
      throw Refused{};
    }
    Frame frame;
    frame.node.kind = kind, frame.node.location = location(mark), frame.anchor = anchor;
    open_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(open_.back());
    open_.pop_back();
    if (frame.anchor) anchors_[frame.anchor] = frame.node;
    add(std::move(frame.node));
  }

  void add(Node node) {
    if (open_.empty()) {
      if (documents <= 1) root = std::move(node);
      return;
    }
    Frame& parent = open_.back();
    if (parent.node.kind == Node::Kind::list) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      parent.has_key = true;
      add_key(parent, node);
    } else {
      parent.has_key = false;
      if (!parent.skip) parent.node.items.push_back(std::move(node));
      parent.skip = false;
    }
  }

  void add_key(Frame& parent, const Node& key) {
    if (key.kind == Node::Kind::list || key.kind == Node::Kind::map) {
      diagnostics_.add_at(Severity::error, key.location, "", "a key must be a word",
                          "`${...}` and `{...}` at the start of a line need quotes");
      parent.skip = true;
      return;
    }
    const std::string name = key.kind == Node::Kind::null ? "~" : key.text;
    for (const auto& other : parent.node.keys) {
      if (other.name != name) continue;
      diagnostics_.add_at(
          Severity::error, key.location, name,
          fmt::format("the key `{}` stands twice in one section; it was first given at "
                      "{}",
                      name, other.location.str()),
          "keep one of the two");
      parent.skip = true;
      return;
    }
    parent.node.keys.push_back({name, key.location});
  }

  // `<<: *anchor` adds the keys that the mapping itself does not have.
  static void merge(Node& map) {
    const auto at = std::find_if(map.keys.begin(), map.keys.end(),
                                 [](const Node::Key& k) { return k.name == "<<"; });
    if (at == map.keys.end()) return;
    const auto index = at - map.keys.begin();
    Node from = std::move(map.items[size_t(index)]);
    map.keys.erase(at);
    map.items.erase(map.items.begin() + index);
    std::vector<Node> sources;
    if (from.kind == Node::Kind::list)
      sources = std::move(from.items);
    else
      sources.push_back(std::move(from));
    for (auto& source : sources) {
      for (size_t i = 0; source.kind == Node::Kind::map && i < source.keys.size(); ++i) {
        const bool exists = std::any_of(map.keys.begin(), map.keys.end(), [&](const Node::Key& k) {
          return k.name == source.keys[i].name;
        });
        if (exists) continue;
        map.keys.push_back(source.keys[i]);
        map.items.push_back(source.items[i]);
      }
    }
  }

  std::string source_;
  Diagnostics& diagnostics_;
  std::vector<Frame> open_;
  std::unordered_map<YAML::anchor_t, Node> anchors_;
  size_t nodes_ = 0;
};

// Explains messages of the YAML parser, for texts in which find_yaml_faults() does not see a fault.
struct ParserMessage {
  const char *part, *reason, *hint;
};
constexpr ParserMessage kParserMessages[] = {
    {"illegal map value", "a `key: value` cannot stand here",
     "check the indentation of this line, and put quotes around text that contains `: `"},
    {"end of map not found", "this line does not belong to the section above it",
     "indent all keys of a section by the same number of spaces"},
    {"end of sequence not found", "this line does not belong to the list above it",
     "indent all items of a list by the same number of spaces"},
    {"end of map flow", "a brace is not closed", "write `}` after the last value"},
    {"end of sequence flow", "a bracket is not closed", "write `]` after the last value"},
    {"illegal block entry", "a list item `- x` cannot stand here",
     "check the indentation of this line"},
    {"illegal map key", "a key cannot stand here", "check the indentation of this line"},
    {"unknown token", "the value starts with a character that has a meaning in YAML",
     "put quotes around a value that starts with @, %, `, * or &"},
    {"while scanning", "the value starts with a character that has a meaning in YAML",
     "put quotes around a value that starts with @, %, `, * or &"},
    {"bad file", "the text is not UTF-8", "save the file as UTF-8"}};

void report_parser_message(const YAML::Exception& e, const std::string& source,
                           Diagnostics& diagnostics) {
  const auto row = std::ranges::find_if(kParserMessages, [&](const ParserMessage& known) {
    return e.msg.find(known.part) != std::string::npos;
  });
  const SourceLocation location{source, e.mark.line + 1, e.mark.column + 1};
  if (row != std::end(kParserMessages))
    diagnostics.add_at(Severity::error, location, "", row->reason, row->hint);
  else
    diagnostics.add_at(Severity::error, location, "", "this is not valid YAML: " + e.msg,
                       "check the indentation and the quotes around this line");
}

void report(const YamlFault& fault, const std::string& source, Diagnostics& diagnostics) {
  diagnostics.add_at(Severity::error, {source, fault.line, fault.column}, "", fault.reason,
                     fault.hint);
}

// Reports characters that YAML refuses or that cannot be seen. This comes before parsing, because
// the parser often names another place.
bool clean_text(const std::string& text, const std::string& source, Diagnostics& diagnostics) {
  if (text.size() > kMaxBytes) {
    diagnostics.add_at(
        Severity::error, {source, 0, 0}, "",
        fmt::format("{} is too large for a recipe (the limit is {})",
                    human_bytes(double(text.size())), human_bytes(double(kMaxBytes))),
        "give the YAML recipe, not a data file");
    return false;
  }
  int line = 1, column = 1;
  bool clean = true, indenting = true;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '\n') {
      ++line, column = 1, indenting = true;
      continue;
    }
    if (c == '\t' && indenting) {
      diagnostics.add_at(Severity::error, {source, line, column}, "",
                         "a tab indents this line; YAML allows only spaces",
                         "replace the tab with spaces");
      clean = false;
    } else if (u < 0x20 && c != '\t' && c != '\r') {
      diagnostics.add_at(
          Severity::error, {source, line, column}, "",
          fmt::format("this is not a text: it contains the control character 0x{:02x}", u),
          "a recipe is a YAML file of plain text (UTF-8); give its path");
      return false;
    }
    if (c != ' ') indenting = false;
    ++column;
  }
  return clean;
}

// Reads a file, or a value of the command line.
bool parse(const std::string& text, const std::string& source, bool is_file,
           Diagnostics& diagnostics, Node& out) {
  if (!clean_text(text, source, diagnostics)) return false;
  if (const auto other = is_file ? find_other_language(text) : std::nullopt) {
    report(*other, source, diagnostics);
    return false;
  }
  const YamlFaults faults = find_yaml_faults(text, is_file);
  if (faults.certain) {
    report(*faults.certain, source, diagnostics);
    return false;
  }
  Builder builder(source, diagnostics);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    parser.HandleNextDocument(builder);
  } catch (const YAML::Exception& e) {
    if (faults.likely)
      report(*faults.likely, source, diagnostics);
    else
      report_parser_message(e, source, diagnostics);
    return false;
  } catch (const Refused&) {
    return false;
  }
  if (builder.documents > 1) {
    diagnostics.add_at(Severity::error, builder.second_document, "",
                       "a second document (after `---`) begins in the recipe",
                       "a recipe is one document; put the second one into a file of its own");
    return false;
  }
  out = std::move(builder.root);
  return true;
}

void locate_all(Node& node, const SourceLocation& location) {
  node.location = location;
  for (auto& key : node.keys) key.location = location;
  for (auto& item : node.items) locate_all(item, location);
}

}  // namespace

size_t count_nodes(const Node& node) {
  size_t n = 1;
  for (const auto& item : node.items) n += count_nodes(item);
  return n;
}

bool parse_yaml(const std::string& text, const std::string& source, Diagnostics& diagnostics,
                Node& out) {
  return parse(text, source, true, diagnostics, out);
}

bool parse_override_value(const std::string& text, const std::string& shown,
                          const std::string& source, std::string_view field,
                          Diagnostics& diagnostics, Node& out) {
  Diagnostics own;
  // In YAML a * begins a reference, but in a value it is a pattern: peft.target_modules=*_proj.
  const bool pattern = text.starts_with('*');
  out = pattern ? Node{.kind = Node::Kind::scalar, .text = text, .quoted = true} : Node();
  const bool ok = pattern || (parse(text, "value", false, own, out) && !own.has_errors());
  if (!ok) {
    const auto list = own.sorted();
    diagnostics.add_at(Severity::error, {source, 0, 0}, field,
                       fmt::format("the value `{}` cannot be read: {}", shown, list.front().reason),
                       shown == text && !list.front().hint.empty()
                           ? list.front().hint
                           : "quote text that contains special characters: path='\"text\"'");
    return false;
  }
  locate_all(out, {source, 0, 0});
  return true;
}

}  // namespace mtrain::recipe
