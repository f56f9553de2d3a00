#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

constexpr size_t kMaxText = 64 << 10, kMaxNodes = 20000;
constexpr int kMaxReferenceDepth = 16;

class Interpolator {
 public:
  // Whether references to fields can be replaced, or only those to environment variables.
  enum class Fields { all, none };

  Interpolator(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics,
               Fields fields = Fields::all)
      : given_(given), defaults_(defaults), diagnostics_(diagnostics), fields_(fields) {}

  // Replaces every ${...} in a value that belongs to no field.
  bool value(Node& node, const RawSetting& owner) { return resolve(node, owner); }

  // Replaces every ${...} in a field's node. If one cannot be replaced, adds an error and
  // erases the field.
  bool field(const std::string& path) {
    const auto at = given_.fields.find(path);
    if (at == given_.fields.end() || done_.count(path)) return true;
    if (std::find(open_.begin(), open_.end(), path) != open_.end()) return cycle(path);
    open_.push_back(path);
    const bool ok = resolve(at->second.node, at->second);
    open_.pop_back();
    if (ok) {
      done_.insert(path);
    } else {
      given_.fields.erase(path);
    }
    return ok;
  }

 private:
  bool fail(std::string reason, std::string hint) {
    // A failure is reported once, for the field that holds the failing reference.
    diagnostics_.add_at(Severity::error, current_->location,
                        current_->row ? current_->row->path : current_->spelling, std::move(reason),
                        std::move(hint));
    return false;
  }

  bool cycle(const std::string& path) {
    std::string chain;
    for (auto i = std::find(open_.begin(), open_.end(), path); i != open_.end(); ++i)
      chain += *i + " -> ";
    return fail(fmt::format("the references run in a circle: {}{}", chain, path),
                "give one of these fields a value");
  }

  bool resolve(Node& node, const RawSetting& owner) {
    for (auto& item : node.items)
      if (!resolve(item, owner)) return false;
    if (node.kind != Node::Kind::scalar) return true;
    current_ = &owner;
    // A quoted value in launch.env may be any text, even $NAME.
    const bool any_text = node.quoted && owner.row && owner.row->path == "launch.env";
    if (const std::string bare = bare_variable(node.text); !bare.empty() && !any_text)
      return fail(fmt::format("`${}` is not replaced by the variable's value", bare),
                  fmt::format("write ${{env:{}}}", bare));
    if (node.text.find("${") == std::string::npos) return true;
    Node value;
    if (!expand(node.text, owner, 0, value)) return false;
    value.location = node.location;
    value.reference = node.text;
    // A quoted text with a reference among other characters remains quoted.
    if (closing_brace(node.text, 0) + 1 != node.text.size()) value.quoted = node.quoted;
    node = std::move(value);
    return true;
  }

  // Replaces every ${...} in `text`. A text that is one reference becomes that field's value, which
  // may be a list.
  bool expand(const std::string& text, const RawSetting& owner, int depth, Node& out) {
    if (depth > kMaxReferenceDepth)
      return fail("references are nested too deep", "give the inner ones");
    out.kind = Node::Kind::scalar;
    std::string_view rest = text;
    for (size_t start = 0; (start = rest.find("${")) != std::string_view::npos;) {
      if (start > 0 && rest[start - 1] == '$') {  // $${ is a literal ${
        out.text += std::string(rest.substr(0, start - 1)) + "${";
        rest.remove_prefix(start + 2);
        continue;
      }
      current_ = &owner;
      const size_t end = closing_brace(rest, start);
      if (end == std::string_view::npos)
        return fail(owner.row && owner.row->path == "launch.env"
                        ? "a reference has no closing brace"
                        : fmt::format("`{}` has no closing brace", rest.substr(start)),
                    "write ${name}");
      Node value;
      if (!look_up(std::string(trim(rest.substr(start + 2, end - start - 2))), owner, depth, value))
        return false;
      if (text.size() == end - start + 1) {
        out = std::move(value);
        return true;
      }
      if (value.kind == Node::Kind::list || value.kind == Node::Kind::map)
        return fail(fmt::format("{} stands inside a text", describe(value)),
                    "refer to a field with a single value");
      out.text += std::string(rest.substr(0, start)) + value.text;
      rest.remove_prefix(end + 1);
      if (out.text.size() > kMaxText) return fail("the text grows beyond 64 KiB", "");
    }
    out.text += rest;
    return true;
  }

  // Returns the position of the brace that closes the `${` at `start`.
  static size_t closing_brace(std::string_view text, size_t start) {
    if (text.substr(start, 2) != "${") return std::string_view::npos;
    int open = 0;
    for (size_t i = start; i < text.size(); ++i) {
      if (text[i] == '{' && text[i - (i > 0)] == '$') ++open;
      if (text[i] == '}' && --open == 0) return i;
    }
    return std::string_view::npos;
  }

  // Returns NAME of a shell's $NAME that begins the text or a part of a path; or "".
  static std::string bare_variable(std::string_view text) {
    for (size_t at = text.find('$'); at != std::string_view::npos; at = text.find('$', at + 1)) {
      if (at > 0 && text[at - 1] != '/' && text[at - 1] != ':') continue;
      size_t end = at + 1;
      const auto in_name = [&](char c) {
        return c == '_' || (end > at + 1 ? std::isalnum(static_cast<unsigned char>(c))
                                         : std::isalpha(static_cast<unsigned char>(c)));
      };
      while (end < text.size() && in_name(text[end])) ++end;
      if (end > at + 1) return std::string(text.substr(at + 1, end - at - 1));
    }
    return {};
  }

  bool look_up_variable(const std::string& name, const RawSetting& owner, int depth, Node& out) {
    const auto comma = name.find(',');
    const std::string variable(trim(std::string_view(name).substr(4, comma - 4)));
    if (variable.find("${") != std::string::npos)
      return fail(fmt::format("the name of a variable is a reference itself: ${{{}}}", name),
                  "only its default may be one: ${env:A,${env:B}}");
    out.kind = Node::Kind::scalar;
    if (const char* value = std::getenv(variable.c_str())) {
      out.text = value;
      return true;
    }
    if (comma != std::string::npos)
      return expand(std::string(trim(std::string_view(name).substr(comma + 1))), owner, depth + 1,
                    out);
    return fail(fmt::format("the environment variable {} is not set", variable),
                fmt::format("set it, or give a default: ${{env:{},value}}", variable));
  }

  bool look_up(const std::string& name, const RawSetting& owner, int depth, Node& out) {
    if (name.starts_with("env:")) return look_up_variable(name, owner, depth, out);
    if (name.starts_with("oc.env:"))
      return fail(fmt::format("${{{}}} is OmegaConf's name of a variable", name),
                  fmt::format("write ${{{}}}", name.substr(3)));
    if (name.find("${") != std::string::npos)
      return fail(fmt::format("the name of a field is a reference itself: ${{{}}}", name),
                  "write the field's name");
    if (fields_ == Fields::none)
      return fail(fmt::format("${{{}}} refers to a field, which is not known yet", name),
                  "a base may refer to variables alone: ${env:NAME}");
    const std::string path = normalize_path(name);
    const SchemaRow* row = find_row(path);
    if (!row) {
      const std::string meant = nearest_key(path);
      return fail(fmt::format("${{{}}} refers to a field that does not exist", name),
                  meant.empty() ? "" : fmt::format("did you mean ${{{}}}?", meant));
    }
    if (!field(row->path)) return false;
    current_ = &owner;
    if (row->path == "train.steps" && !given_.fields.contains(row->path) && sets("train.epochs"))
      return fail(
          "${train.steps} is not known yet: the data decide how many steps train.epochs has",
          "give train.steps instead of train.epochs, or a number here");
    if (const auto at = given_.fields.find(row->path); at != given_.fields.end()) {
      out = at->second.node;
      copied_ += count_nodes(out);
      if (copied_ > kMaxNodes) return fail("the references expand to too many values", "");
      return true;
    }
    return parse_yaml(row->show(defaults_), "default", diagnostics_, out);
  }

  bool sets(std::string_view path) const {
    const auto at = given_.fields.find(path);
    return at != given_.fields.end() && !at->second.node.unset();
  }

  RawSettings& given_;
  const Recipe& defaults_;
  Diagnostics& diagnostics_;
  const Fields fields_;
  std::vector<std::string> open_;
  std::set<std::string> done_;
  const RawSetting* current_ = nullptr;
  size_t copied_ = 0;
};

// Returns the references in a value and its items, separated by commas.
std::string references_of(const Node& node) {
  std::string all = node.reference;
  for (const Node& item : node.items) {
    const std::string more = references_of(item);
    all += (all.empty() || more.empty() ? "" : ", ") + more;
  }
  return all;
}

}  // namespace

bool interpolate_base(Node& base, Diagnostics& diagnostics) {
  RawSettings none;
  const Recipe defaults;
  const RawSetting owner{nullptr, "base", base.location, base, Origin::recipe};
  return Interpolator(none, defaults, diagnostics, Interpolator::Fields::none).value(base, owner);
}

void interpolate_field(std::string_view path, RawSettings& given, const Recipe& defaults,
                       Diagnostics& diagnostics) {
  Interpolator(given, defaults, diagnostics).field(std::string(path));
}

void interpolate(RawSettings& given, const Recipe& defaults, Diagnostics& diagnostics,
                 std::map<std::string, std::string, std::less<>>& references) {
  std::vector<std::string> paths;
  for (const auto& [path, field] : given.fields) paths.push_back(path);
  Interpolator interpolator(given, defaults, diagnostics);
  for (const auto& path : paths) interpolator.field(path);
  for (const auto& [path, field] : given.fields)
    if (std::string text = references_of(field.node); !text.empty())
      references[field.row->path] = std::move(text);
}

}  // namespace mtrain::recipe
