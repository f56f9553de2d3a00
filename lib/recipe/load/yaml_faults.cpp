#include "recipe/load/yaml_faults.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include <fmt/core.h>

#include "base/strings.h"

namespace mtrain::recipe {
namespace {

using Text = std::string_view;

// YAML separates tokens by spaces and tabs; only indentation has no tabs.
constexpr Text kBlanks = " \t";
bool is_blank(char c) { return c == ' ' || c == '\t'; }

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
}

std::string spaces(int n) { return fmt::format("{} space{}", n, n == 1 ? "" : "s"); }

// Returns the length of the name at the start of a text; 0 if it does not begin with a letter.
size_t name_length(Text text) {
  if (text.empty() || !(std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_'))
    return 0;
  return size_t(std::find_if_not(text.begin(), text.end(), is_name) - text.begin());
}

// Returns the key of a line such as `key: value` or `key:`; empty if the line has no key.
Text key_of(Text text) {
  const size_t n = name_length(text);
  if (n == 0 || n >= text.size() || text[n] != ':') return {};
  return n + 1 == text.size() || is_blank(text[n + 1]) ? text.substr(0, n) : Text();
}

// Returns the key of `key:value`. URLs and paths of Windows have the same form and are texts.
Text key_without_space(Text text) {
  const size_t n = name_length(text);
  if (n < 2 || n + 1 >= text.size() || text[n] != ':') return {};
  const char next = text[n + 1];
  return is_blank(next) || next == '/' || next == '\\' || next == ':' ? Text() : text.substr(0, n);
}

// Whether a comment begins at `at`.
bool is_comment(Text text, size_t at) {
  return text[at] == '#' && (at == 0 || is_blank(text[at - 1]));
}

// Whether the text begins with the dash of a list item and its value.
bool is_item(Text text) { return text.size() > 1 && text[0] == '-' && is_blank(text[1]); }

// Returns the text without a comment at its end. A `#` at its start is part of the text.
Text without_comment(Text text) {
  for (size_t i = 1; i < text.size(); ++i)
    if (is_comment(text, i)) return trim(text.substr(0, i));
  return trim(text);
}

// Whether the line is `name = value`, as in TOML and INI files.
bool is_assignment(Text line) {
  const size_t n = name_length(line);
  const size_t at = n == 0 ? Text::npos : line.find_first_not_of(kBlanks, n);
  return at != Text::npos && line[at] == '=' && line.substr(at, 2) != "==" && at + 1 < line.size();
}

// Walks over the lines as a YAML parser does, but remembers where quotes, braces and sections
// begin. It stops at the first likely fault, because it could misread what follows.
class Scanner {
 public:
  Scanner(Text text, bool is_file) : is_file_(is_file) {
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      Text line = text.substr(at, end - at);
      if (line.ends_with('\r')) line.remove_suffix(1);
      lines_.push_back(line);
      at = end + 1;
    }
  }

  YamlFaults scan() {
    for (line_ = 0; line_ < lines_.size() && !stop_; ++line_) {
      if (flow_.empty())
        block_line();
      else
        flow_line(0);
    }
    if (!stop_ && !flow_.empty()) unclosed(flow_.back());
    return faults_;
  }

 private:
  struct Open {  // a brace or bracket
    char bracket;
    size_t line, column;
    int indent;          // the indentation of its line
    bool value = false;  // the colon of a key has been read
    bool done = false;   // an item is complete: a comma or the end must follow
    bool comma = false;  // an earlier item has ended
  };
  struct Level {  // a section, by its newest key
    int indent = 0;
    size_t line = 0;
    std::string key;
  };

  static constexpr const char* kDash = "`-`";  // the key of the level of a list

  Text line() const { return lines_[line_]; }

  int indent_of(size_t number) const {
    return int(std::min(lines_[number].find_first_not_of(' '), lines_[number].size()));
  }

  void fault(size_t at, size_t column, bool certain, std::string reason, std::string hint) {
    const YamlFault found{int(at) + 1, int(column) + 1, std::move(reason), std::move(hint)};
    if (certain && !faults_.certain) faults_.certain = found;
    if (!faults_.likely) faults_.likely = found;
    stop_ = true;
  }

  void unclosed(const Open& open) {
    fault(open.line, open.column, true,
          fmt::format("the `{}` that opens here is not closed", open.bracket),
          fmt::format("write `{}` after its last value", open.bracket == '{' ? '}' : ']'));
  }

  void missing_space(size_t column, Text key, Text rest) {
    fault(line_, column, true, "a space is missing after the colon",
          fmt::format("write {}: {}", key, trim(rest.substr(key.size() + 1))));
  }

  void equals_sign(size_t column, Text assignment) {
    const size_t equals = assignment.find('=');
    fault(line_, column, true, "a colon follows a key in YAML, not `=`",
          fmt::format("write {}: {}", trim(assignment.substr(0, equals)),
                      trim(assignment.substr(equals + 1))));
  }

  // Refuses the quotes and spaces of word processors, which YAML takes for letters.
  void refuse_typography(size_t column) {
    const Text rest = line().substr(column);
    if (rest.starts_with("\xC2\xA0"))
      fault(line_, column, true, "a non-breaking space stands here", "replace it with a space");
    for (const Text quote : {"\xE2\x80\x9C", "\xE2\x80\x9D", "\xE2\x80\x98", "\xE2\x80\x99"})
      if (rest.starts_with(quote))
        fault(line_, column, true, "a typographic quote stands here, which is part of the text",
              "write straight quotes: \"...\"");
  }

  // ----- lines outside of braces

  void block_line() {
    const int indent = indent_of(line_);
    const Text rest = line().substr(size_t(indent));
    if (rest.empty() || rest[0] == '#') return;
    if (text_indent_ >= 0) {  // within a text after | or >
      if (indent > text_indent_) return;
      text_indent_ = -1;
    }
    if (indent == 0 && (rest.starts_with("---") || rest.starts_with("...") || rest[0] == '%')) {
      levels_.clear();
      value_indent_ = -1;
      return;
    }
    if (value_indent_ >= 0 && indent > value_indent_) {  // the line continues a plain text
      if (!key_of(rest).empty() && levels_.back().key != kDash)
        wrong_indent(indent, rest, levels_.back().key, value_line_, value_indent_);
      return;
    }
    place(indent, rest);
    refuse_typography(size_t(indent));
    if (!stop_) node(size_t(indent), indent);
  }

  void wrong_indent(int indent, Text rest, Text before, size_t line_before, int right) {
    const Text key = key_of(rest);
    const std::string name = key.empty() ? "this line" : std::string(key);
    fault(line_, size_t(indent), false,
          fmt::format("{} has {} before it, and {} (line {}) has {}", name, spaces(indent), before,
                      line_before + 1, right),
          fmt::format("indent {} by {}", name, spaces(right)));
  }

  // Compares the indentation with that of the sections around the line.
  void place(int indent, Text rest) {
    if (levels_.empty() || indent >= levels_.back().indent) return;
    Level last;
    while (!levels_.empty() && levels_.back().indent > indent) {
      last = levels_.back();
      levels_.pop_back();
    }
    if (levels_.empty() || levels_.back().indent < indent)
      wrong_indent(indent, rest, last.key, last.line, last.indent);
  }

  void add_level(int indent, Text key) {
    // Messages name the newest key of a section.
    if (!levels_.empty() && levels_.back().indent == indent) levels_.pop_back();
    levels_.push_back({indent, line_, std::string(key)});
  }

  // Reads `- `, a key and its value from `column` on.
  void node(size_t column, int indent) {
    const size_t start = column;
    while (is_item(line().substr(column))) {
      add_level(indent, kDash);
      column = std::min(line().find_first_not_of(kBlanks, column + 1), line().size());
      indent = int(column);
    }
    const bool item = column > start;
    value_indent_ = -1;
    if (item) column = std::min(after_properties(column), line().size());
    const Text rest = line().substr(column);
    if (rest.empty() || rest == "-" || rest[0] == '#') return;
    if (rest[0] == '|' || rest[0] == '>') {
      text_indent_ = section_indent();
      return;
    }
    if (rest[0] == '"' || rest[0] == '\'') {
      const size_t first = line_;
      const size_t end = quoted(column);
      if (stop_) return;
      const Text after = line().substr(end);
      if (line_ == first && after.starts_with(':')) {
        add_level(indent, rest.substr(1, end - column - 2));
        return value(end + 1, indent);
      }
      return after_value(end);
    }
    if (rest[0] == '{' || rest[0] == '[') return flow_line(column);
    const size_t colon = colon_in(rest);
    if (colon != Text::npos) {
      add_level(indent, trim(rest.substr(0, colon)));
      return value(column + colon + 1, indent);
    }
    if (item) {  // a text, whose next lines may look like keys
      value_indent_ = section_indent(), value_line_ = line_;
      return;
    }
    if (!is_file_) return;
    const Text plain = without_comment(rest);
    if (const Text key = key_without_space(plain); !key.empty())
      return missing_space(column, key, plain);
    if (is_assignment(plain)) equals_sign(column, plain);
  }

  // Returns where the colon after a plain key is.
  static size_t colon_in(Text text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (i > 0 && is_comment(text, i)) return Text::npos;
      if (text[i] == ':' && (i + 1 == text.size() || is_blank(text[i + 1]))) return i;
    }
    return Text::npos;
  }

  // Returns where the value begins after blanks, tags and anchors; npos if none is in the line.
  size_t after_properties(size_t column) const {
    size_t at = line().find_first_not_of(kBlanks, column);
    while (at != Text::npos && (line()[at] == '!' || line()[at] == '&'))
      at = line().find_first_not_of(kBlanks,
                                    std::min(line().find_first_of(kBlanks, at), line().size()));
    return at;
  }

  // Returns the indentation of the key or dash to which a value belongs. Further lines of the value
  // are deeper.
  int section_indent() const { return levels_.empty() ? 0 : levels_.back().indent; }

  // Reads the value of a key whose line is indented by `indent`.
  void value(size_t column, int indent) {
    const size_t at = after_properties(column);
    if (at == Text::npos || line()[at] == '#') return;  // the value is below
    value_indent_ = indent, value_line_ = line_;
    refuse_typography(at);
    if (stop_) return;
    const char first = line()[at];
    if (first == '"' || first == '\'') {
      const size_t end = quoted(at);
      if (!stop_) after_value(end);
    } else if (first == '{' || first == '[') {
      flow_line(at);
    } else if (first == '|' || first == '>') {
      text_indent_ = indent, value_indent_ = -1;
    } else {
      const Text plain = without_comment(line().substr(at));
      if (const size_t colon = colon_in(plain); colon != Text::npos)
        fault(line_, at + colon, false, "a second `: ` stands in this line",
              fmt::format("a section is {}: {{{}}}; a text with a colon needs quotes: {}: \"{}\"",
                          levels_.back().key, plain, levels_.back().key, plain));
    }
  }

  void after_value(size_t column) {
    const size_t at = line().find_first_not_of(kBlanks, column);
    if (at == Text::npos || line()[at] == '#') return;
    fault(line_, at, false, "there is more text after the value of this line",
          "put quotes around the entire value, or start a comment with ` #`");
  }

  // ----- quotes

  // Reads the quoted text that opens at `column`. Returns the column after its end, which lies in
  // line_. PyYAML wraps long texts and indents their further lines. Another line that looks like a
  // key, an item or a comment is a sign that the quote was forgotten.
  size_t quoted(size_t column) {
    const size_t first = line_;
    const char quote = line()[column];
    size_t at = column + 1;
    while (true) {
      for (; at < line().size(); ++at) {
        if (line()[at] == '\\' && quote == '"') {
          ++at;
        } else if (line()[at] == quote) {
          if (quote != '\'' || line().substr(at + 1, 1) != "'") return closed(first, column, at);
          ++at;
        }
      }
      if (line_ + 1 == lines_.size()) break;
      const bool wrapped = quote == '"' && line().ends_with('\\');
      const Text next = trim(lines_[++line_]);
      const bool deeper = indent_of(line_) > section_indent();
      if (!wrapped && !deeper && (!key_of(next).empty() || is_item(next) || next.starts_with('#')))
        break;
      at = 0;
    }
    return open_quote(first, column);
  }

  size_t closed(size_t first, size_t column, size_t at) {
    const Text after = trim(line().substr(at + 1));
    if (first == line_ || after.empty() || Text("#,:}]").find(after[0]) != Text::npos)
      return at + 1;
    return open_quote(first, column);
  }

  size_t open_quote(size_t first, size_t column) {
    const Text text = lines_[first].substr(column);
    const Text inner =
        without_comment(flow_.empty() ? text : text.substr(0, text.find_first_of(",}]")));
    fault(first, column, true, "the quote that opens here is not closed on its line",
          fmt::format("write {}{}", inner, text[0]));
    return 0;
  }

  // ----- braces and brackets

  void flow_line(size_t column) {
    bool first = column == 0 && !flow_.empty();
    bool begun = false;  // a quoted text can move to another line, so columns cannot be compared
    for (size_t at = column; !stop_;) {
      at = line().find_first_not_of(kBlanks, at);
      if (at == Text::npos || is_comment(line(), at)) return;
      if (begun && flow_.empty()) return after_value(at);
      at = token(at, first);
      first = false, begun = true;
    }
  }

  // Reads what begins at `at`; returns the place after it.
  size_t token(size_t at, bool first) {
    const char c = line()[at];
    if (c == '{' || c == '[') {
      if (!may_begin(at, first)) return at;
      if (flow_.size() > 100) stop_ = true;  // the parser refuses it
      flow_.push_back({c, line_, at, indent_of(line_)});
      return at + 1;
    }
    if (c == '}' || c == ']') return close(at, c);
    Open& open = flow_.back();
    if (c == ',') {
      if (!open.done && !open.value) return empty_entry(at, open), at;
      open.done = open.value = false, open.comma = true;
      return at + 1;
    }
    if (c == ':') {  // after a quoted key
      open.value = true, open.done = false;
      return at + 1;
    }
    if (c == '"' || c == '\'') {
      if (!may_begin(at, first)) return at;
      const size_t end = quoted(at);
      flow_.back().done = true;
      return stop_ ? at : end;
    }
    return plain(at, first);
  }

  // Refuses an empty entry, which the parser would read as a key or value `~`.
  void empty_entry(size_t at, const Open& open) {
    if (open.comma)
      fault(line_, at, true, "there is an empty entry between two commas", "remove one comma");
    else
      fault(line_, at, true, fmt::format("there is an empty entry after `{}`", open.bracket),
            "remove the comma");
  }

  // Refuses a value where a comma must stand, or where a key of an outer section shows that a brace
  // was not closed.
  bool may_begin(size_t at, bool first) {
    if (flow_.empty() || !flow_.back().done) return true;
    const Open& open = flow_.back();
    if (first && indent_of(line_) <= open.indent) {
      unclosed(open);
    } else {
      const size_t end = std::min(line().find_first_of(" \t,:]}", at + 1), line().size());
      const Text word = line().substr(at, end - at);
      fault(line_, at, false, fmt::format("a comma is missing before {}", word),
            fmt::format("write a comma before {}", word));
    }
    return false;
  }

  size_t close(size_t at, char bracket) {
    const Open open = flow_.back();
    if ((open.bracket == '{') != (bracket == '}')) return unclosed(open), at;
    flow_.pop_back();
    if (!flow_.empty()) flow_.back().done = true;
    return at + 1;
  }

  size_t plain(size_t at, bool first) {
    refuse_typography(at);
    if (stop_) return at;
    size_t end = at;
    bool key = false;
    for (; end < line().size() && Text(",[]{}").find(line()[end]) == Text::npos; ++end) {
      if (is_comment(line(), end)) break;
      const bool last = end + 1 == line().size();
      key = line()[end] == ':' && (last || Text(" \t,[]{}").find(line()[end + 1]) != Text::npos);
      if (key) break;
    }
    const Text text = trim(line().substr(at, end - at));
    if (text.ends_with('$') && end < line().size() && line()[end] == '{') {
      fault(line_, end - 1, false, "`${...}` within braces or brackets needs quotes",
            "put quotes around the value");
      return at;
    }
    return key ? flow_key(at, end, text, first) : flow_value(at, end, text);
  }

  size_t flow_key(size_t at, size_t colon, Text text, bool first) {
    Open& open = flow_.back();
    if (open.done && !may_begin(at, first)) return at;
    if (open.bracket == '{' && open.value) {
      const size_t blank = text.find_last_of(kBlanks);
      if (blank == Text::npos) {
        fault(line_, colon, false, "a second `: ` follows one key", "put quotes around the value");
      } else {
        open.done = true;
        may_begin(at + blank + 1, false);
      }
      return at;
    }
    open.value = true, open.done = false;
    return colon + 1;
  }

  size_t flow_value(size_t at, size_t end, Text text) {
    Open& open = flow_.back();
    const bool in_map = open.bracket == '{';
    if (in_map && !open.value && !open.done) {
      if (const Text key = key_without_space(text); !key.empty())
        return missing_space(at, key, text), at;
      if (is_assignment(text)) return equals_sign(at, text), at;
    }
    if (in_map && open.value && !open.done)
      if (const std::string number = number_with_commas(at); !number.empty())
        return fault(line_, at, true, "a comma ends a value, also within a number",
                     fmt::format("write {}", number)),
               at;
    open.done = true;
    return end;
  }

  // Returns what to write for a number with commas that begins at `at`: 1000000 for 1,000,000, and
  // 0.001 for 0,001, where the comma is a decimal point. Empty for other texts.
  std::string number_with_commas(size_t at) const {
    const auto count = [&](size_t from) {
      return size_t(std::find_if_not(line().begin() + long(from), line().end(), is_digit) -
                    line().begin()) -
             from;
    };
    const size_t n = count(at);
    if (n < 1 || n > 3) return {};
    const bool fraction = line()[at] == '0';
    std::string number(line().substr(at, n));
    at += n;
    while (at + 1 < line().size() && line()[at] == ',') {
      const size_t more = count(at + 1);
      if (more == 0 || (more != 3 && !fraction)) break;
      number += (fraction ? "." : "") + std::string(line().substr(at + 1, more));
      at += 1 + more;
      if (fraction) break;
    }
    const bool ends = at == line().size() || Text(",} \t").find(line()[at]) != Text::npos;
    return number.size() > n && ends ? number : "";
  }

  bool is_file_;
  std::vector<Text> lines_;
  size_t line_ = 0;
  std::vector<Open> flow_;
  std::vector<Level> levels_;
  int text_indent_ = -1;   // the indentation of a key with text after | or >; or -1
  int value_indent_ = -1;  // the same for a plain value that may continue below
  size_t value_line_ = 0;
  bool stop_ = false;
  YamlFaults faults_;
};

}  // namespace

YamlFaults find_yaml_faults(std::string_view text, bool is_file) {
  return Scanner(text, is_file).scan();
}

std::optional<YamlFault> find_other_language(std::string_view text) {
  const std::vector<std::string> lines = split(text, '\n');
  const bool assigns =
      std::ranges::any_of(lines, [](const std::string& line) { return is_assignment(trim(line)); });
  for (size_t i = 0; i < lines.size(); ++i) {
    const Text line = trim(lines[i]);
    const auto found = [&](const char* language, const char* hint) {
      return YamlFault{int(i) + 1, 1, fmt::format("this looks like {}; a recipe is YAML", language),
                       hint};
    };
    if (line.starts_with("#!") && (line.find("python") != Text::npos || line.ends_with("sh")))
      return found("a script",
                   "give the YAML recipe; `mtrain quickstart --print-recipe` shows one");
    if (line.starts_with("import ") || line.starts_with("\"\"\"") || line.starts_with("def ") ||
        line.starts_with("class ") ||
        (line.starts_with("from ") && line.find(" import ") != Text::npos))
      return found("Python", "give the YAML recipe; `mtrain quickstart --print-recipe` shows one");
    const bool section = line.starts_with('[') && line.ends_with(']') &&
                         name_length(trim(line.substr(line.find_first_not_of('[')))) > 0 &&
                         line.find_first_of(", \"") == Text::npos;
    if ((section && assigns) || is_assignment(line))
      return found("TOML",
                   "write a section as `model:` with its keys indented below, and a key as "
                   "`num_layers: 8`");
    if (!line.empty() && line[0] != '#') return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace mtrain::recipe
