#include "recipe/print/schema_export.h"

#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/word_hints.h"
#include "recipe/print/row_text.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {
namespace {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", int(c));
    else
      out += c;
  }
  return out + "\"";
}

std::string limits(const FieldOptions& o) {
  std::string out;
  if (std::isfinite(o.min) && !o.zero_is_unset)
    out += fmt::format(", \"{}\": {}", o.above_min ? "exclusiveMinimum" : "minimum", o.min);
  if (std::isfinite(o.max))
    out += fmt::format(", \"{}\": {}", o.below_max ? "exclusiveMaximum" : "maximum", o.max);
  return out;
}

std::string json_plain_type(TypeInfo::Kind kind, const TypeInfo& info,
                            const FieldOptions& options) {
  using Kind = TypeInfo::Kind;
  switch (kind) {
    case Kind::boolean: return "\"type\": \"boolean\"";
    case Kind::integer: return "\"type\": \"integer\"" + limits(options);
    case Kind::number: return "\"type\": \"number\"" + limits(options);
    case Kind::text: return "\"type\": \"string\"";
    case Kind::mapping: return "\"type\": [\"object\", \"string\"]";
    case Kind::choice: {
      std::string names;
      for (const auto& name : info.choices) {
        if (!names.empty()) names += ", ";
        names += json_string(name);
      }
      return "\"enum\": [" + names + "]";
    }
    case Kind::list: break;
  }
  return "";
}

// Accepts the field's own type, null, or a reference such as ${train.steps}.
std::string json_type(const SchemaRow& row) {
  const TypeInfo info = row.ops->info();
  std::string any;
  if (info.kind == TypeInfo::Kind::list) {
    const std::string item = json_plain_type(info.item, info, row.options);
    any = fmt::format("{{\"type\": \"array\", \"items\": {{{0}}}}}, {{{0}}}", item);
  } else {
    any = "{" + json_plain_type(info.kind, info, row.options) + "}";
  }
  if (info.may_be_auto) any += ", {\"const\": \"auto\"}";
  any += ", {\"type\": \"null\"}, {\"const\": \"none\"}";
  any += ", {\"type\": \"string\", \"pattern\": \"^\\\\$\\\\{.*\\\\}$\"}";
  return "\"anyOf\": [" + any + "]";
}

// A tree of keys, in the order in which they were added.
struct Branch {
  std::string name, body;  // body: of a leaf, the inside of its JSON object
  std::string help, shorthand;
  std::vector<std::unique_ptr<Branch>> children;

  Branch& at(std::string_view path) {
    const auto dot = path.find('.');
    const std::string first(path.substr(0, dot));
    Branch* found = nullptr;
    for (const auto& child : children)
      if (child->name == first) found = child.get();
    if (!found) {
      children.push_back(std::make_unique<Branch>());
      found = children.back().get();
      found->name = first;
    }
    return dot == std::string_view::npos ? *found : found->at(path.substr(dot + 1));
  }

  // A field that may also be written as a mapping of the fields below it: `load: {path: x}`.
  std::string body_or_object() const {
    constexpr std::string_view kAny = "\"anyOf\": [";
    std::string both = body;
    if (const size_t at = both.find(kAny); at != std::string::npos)
      both.insert(at + kAny.size(), "{\"type\": \"object\"}, ");
    return both;
  }

  std::string json(int depth) const {
    if (!body.empty() && children.empty()) return "{" + body + "}";
    const std::string indent(size_t(2 * depth), ' ');
    std::string out = "{" + body_or_object();
    if (!help.empty()) out += "\"description\": " + json_string(help) + ", ";
    if (body.empty())
      out += shorthand.empty() ? "\"type\": [\"object\", \"null\"]"
                               : "\"type\": [\"object\", \"null\", \"string\"]";
    out += ", \"additionalProperties\": false, \"properties\": {\n";
    for (size_t i = 0; i < children.size(); ++i)
      out += fmt::format("{}  {}: {}{}\n", indent, json_string(children[i]->name),
                         children[i]->json(depth + 1), i + 1 < children.size() ? "," : "");
    return out + indent + "}}";
  }
};

std::string escape_cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

std::string markdown_row(const SchemaRow& row, const std::string& section) {
  std::string meaning(row.help);
  if (const auto range = range_text(row.options); !range.empty()) meaning += "; " + range;
  if (!row.options.strategies.empty())
    meaning += fmt::format("; strategy {}", row.options.strategies);
  return fmt::format("| {} | {} | {} | {} | {} |\n", row.path.substr(section.size() + 1),
                     escape_cell(type_text(row)), escape_cell(row.show_default()),
                     escape_cell(meaning), join(all_spellings(row), "`"));
}

}  // namespace

std::string schema_json() {
  Branch root;
  root.help = "a recipe of mtrain";
  root.at("base").body =
      "\"description\": \"recipes that this one builds on\", \"type\": [\"string\", \"array\", "
      "\"null\"]";
  for (const auto& section : schema_sections()) {
    Branch& branch = root.at(section.path);
    branch.help = section.help;
    branch.shorthand = section.options.shorthand;
  }
  for (const auto& row : schema_rows())
    root.at(row.path).body = fmt::format(
        "\"description\": {}, {}",
        json_string(fmt::format("{} (default: {})", row.help, row.show_default())), json_type(row));
  for (const auto& row : schema_rows())
    for (const auto& alias : row.aliases())
      root.at(alias).body = fmt::format("\"description\": {}, {}",
                                        json_string("the same as " + row.path), json_type(row));
  const SchemaRow& load = *find_row("checkpoint.load");
  root.at("checkpoint.load.path").body = fmt::format(
      "\"description\": {}, {}", json_string("the same as " + load.path), json_type(load));
  for (const auto& conversion : foreign_spellings())
    root.at(conversion.path).body =
        fmt::format("\"description\": {}", json_string(fmt::format("sets {}", conversion.target)));
  // The $schema line is inside the braces of the root.
  return "{\"$schema\": \"http://json-schema.org/draft-07/schema#\", " + root.json(0).substr(1) +
         "\n";
}

std::string schema_markdown() {
  std::string out =
      "# Every setting of a recipe\n\n"
      "This page lists every setting by section, with its type, its default and the other names "
      "that it is accepted under.\n"
      "It is the output of `mtrain schema --markdown`; do not edit it. "
      "[recipes.md](../recipes.md) explains the settings by task.\n\n"
      "`auto` means that mtrain chooses a value and prints it at start; `none` means that nothing "
      "is set.\n";
  // Collects each section's own rows: rows of its subsections may be between them.
  std::vector<std::string> sections;
  std::map<std::string, std::string> tables;
  for (const auto& row : schema_rows()) {
    const std::string section = row.path.substr(0, row.path.rfind('.'));
    std::string& table = tables[section];
    if (table.empty()) sections.push_back(section);
    table += markdown_row(row, section);
  }
  for (const auto& section : sections) {
    const SchemaSection* known = find_section(section);
    out += fmt::format("\n## {}\n\n{}\n\n", section, known ? known->help : "");
    out += "| field | type | default | meaning | also accepted |\n|---|---|---|---|---|\n";
    out += tables[section];
  }
  return out;
}

std::string words_markdown() {
  std::string out =
      "# Words of other tools\n\n"
      "This page lists words of transformers, torchtitan, Lightning, Megatron and others that are "
      "not accepted here, because\ntheir unit or meaning differs, and what to write instead. An "
      "error that meets one of them says so. "
      "[recipe.md](recipe.md)\nlists the names of other tools that are accepted.\n"
      "It is the output of `mtrain schema --words`; do not edit it.\n\n"
      "| word | what to write |\n|---|---|\n";
  for (const WordHint& row : word_hints())
    out += fmt::format("| `{}` | {} |\n", row.word, escape_cell(row.hint()));
  return out;
}

}  // namespace mtrain::recipe
