#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>

#include "base/strings.h"
#include "base/terminal.h"
#include "base/text_table.h"

namespace base_terminal_test {

using namespace mtrain;

namespace {

class Terminal {
 public:
  explicit Terminal(int columns) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    REQUIRE(::openpty(&master_, &slave_, nullptr, nullptr, &size) == 0);
  }
  ~Terminal() {
    ::close(master_);
    ::close(slave_);
  }
  int fd() const { return slave_; }

 private:
  int master_ = -1, slave_ = -1;
};

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace

TEST_CASE("a text of a file cannot control the terminal") {
  struct Row {
    std::string text, shown;
  };
  for (const auto& [text, shown] :
       std::vector<Row>{{"loss", "loss"},
                        {"\xc3\xa9t\xc3\xa9 \xe4\xb8\xad", "\xc3\xa9t\xc3\xa9 \xe4\xb8\xad"},
                        {"\x1b[2Jx", "?[2Jx"},
                        {"\x1b]0;title\x07", "?]0;title?"},
                        {"a\nb\tc\x7f", "a?b?c?"},
                        {"\xc2\x9b"
                         "2J",
                         "?2J"},  // U+009B: begins a command, too
                        {"\x9b"
                         "2J",
                         "?2J"},
                        {"\xc3", "?"},
                        {"\xf0\x9f", "??"},
                        {std::string("a\0b", 3), "a?b"}}) {
    CAPTURE(shown);
    CHECK(printable(text) == shown);
    CHECK(is_printable(text) == (text == shown));
  }
  CHECK(printable(std::string(300, 'x')) == std::string(200, 'x') + "...");
  CHECK(printable("abc\xc3\xa9", 4) == "abc...");
  CHECK(printable("abcd", 4) == "abcd");
}

TEST_CASE("the features of a terminal follow from TERM, CI and NO_COLOR") {
  const Terminal terminal(97);
  const Environment term("TERM", "xterm"), ci("CI", nullptr), no_color("NO_COLOR", nullptr);
  CHECK(is_live_terminal(terminal.fd()));
  CHECK(wants_color(terminal.fd()));
  CHECK(terminal_width(terminal.fd()) == 97);
  CHECK(line_width(terminal.fd()) == 96);
  {
    const Environment set("NO_COLOR", "1");
    CHECK(is_live_terminal(terminal.fd()));
    CHECK_FALSE(wants_color(terminal.fd()));
  }
  {
    const Environment set("CI", "true");
    CHECK_FALSE(is_live_terminal(terminal.fd()));
  }
  {
    const Environment set("TERM", "dumb");
    CHECK_FALSE(wants_color(terminal.fd()));
  }
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK_FALSE(is_live_terminal(ends[1]));
  const Environment columns("COLUMNS", "61");
  CHECK(terminal_width(ends[1]) == 61);
  const Environment none("COLUMNS", nullptr);
  CHECK(terminal_width(ends[1]) == 80);
  CHECK(line_width(ends[1]) == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("columns are counted as a terminal does, and no letter is divided") {
  CHECK(display_width("abc") == 3);
  CHECK(display_width("größe · 3") == 9);
  CHECK(fit_columns("größe", 3) == "grö");
  CHECK(fit_columns("größe", 0).empty());
  CHECK(fit_columns("größe", 9) == "größe");
  CHECK(display_width("\r\x1b[K\x1b[1mfold\x1b[0m") == 4);
  CHECK(display_width("模型 e\u0301") == 6);
  CHECK(fit_columns("模型", 3) == "模");
}

TEST_CASE("long lines break between words, and a long word stays whole") {
  CHECK(wrap_words("4 tokens in 2 s; peak memory 3 MiB", 20) ==
        "4 tokens in 2 s;\n  peak memory 3 MiB");
  CHECK(wrap_words("short\nsaved runs/a/folder/of/a/long/name", 12) ==
        "short\nsaved\n  runs/a/folder/of/a/long/name");
  CHECK(wrap_words("a table\n  1   2", 20) == "a table\n  1   2");
  CHECK(wrap_words("a text without a terminal has no limit", 0) ==
        "a text without a terminal has no limit");
  // The rest is indented by two more than the beginning.
  CHECK(wrap_words("    hint: write it in another way", 24) ==
        "    hint: write it in\n      another way");
}

TEST_CASE("of two columns the second wraps, or begins below the first") {
  CHECK(wrap_words("  --dry-run   print the plan and stop; it reads no data", 38) ==
        "  --dry-run   print the plan and stop;\n              it reads no data");
  CHECK(wrap_words("  optimizer.lr_of_a_long_name   peak learning rate", 38) ==
        "  optimizer.lr_of_a_long_name\n      peak learning rate");
  for (int columns = 1; columns < 60; ++columns) {
    const std::string text =
        wrap_words("  --a B   c d e f g h i j k l m n o p q r s t\nu v", columns);
    for (const std::string& line : split(text, '\n'))
      REQUIRE((display_width(line) <= columns || trim(line).find(' ') == std::string::npos));
  }
}

TEST_CASE("a command breaks where a shell joins its lines again") {
  CHECK(wrap_command("  mtrain r.yaml a=1", 40) == "  mtrain r.yaml a=1");
  CHECK(wrap_command("  mtrain r.yaml 'b=[1, 2]' c=3 train.run_dir=runs/x", 30) ==
        "  mtrain r.yaml 'b=[1, 2]' \\\n      c=3 train.run_dir=runs/x");
  CHECK(wrap_command("  mtrain explain learning_rate  # what it is called here", 40) ==
        "  # what it is called here\n  mtrain explain learning_rate");
}

TEST_CASE("a table that is too wide is stacked, and has all of its cells") {
  const std::vector<TableColumn> columns{
      {"rank", 6, TableColumn::Align::left}, {"busy", 8}, {"for", 0, TableColumn::Align::left}};
  const std::vector<std::vector<std::string>> rows{{"0", "12.5", "samples"}, {"1", "", "layers"}};
  CHECK(text_table(columns, rows, 0) ==
        "rank      busy  for\n"
        "0         12.5  samples\n"
        "1               layers\n");
  CHECK(text_table(columns, rows, 23) == text_table(columns, rows, 0));
  CHECK(text_table(columns, rows, 22) ==
        "rank 0\n  busy: 12.5, for:\n    samples\nrank 1\n  for: layers\n");
}

TEST_CASE("tables of Markdown are laid out for a terminal") {
  const std::string text = "## model\n\n| field | meaning |\n|---|---|\n| lr | a \\| b |\n";
  CHECK(markdown_for_terminal(text, 40) == "## model\n\nfield  meaning\nlr     a | b\n");
  CHECK(markdown_for_terminal(text, 12) == "## model\n\nfield lr\n  meaning: a\n    | b\n");
}

}  // namespace base_terminal_test
