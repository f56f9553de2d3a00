#include "data/jinja/parser.h"

#include <initializer_list>
#include <utility>

#include "data/jinja/expression_parser.h"

namespace mtrain::data::jinja {
namespace {

constexpr int kDeepestBlock = 100;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : t_(std::move(tokens)), e_(t_) {}

  Parsed run() {
    Parsed parsed{.body = body({})};
    parsed.generation = generation_;
    return parsed;
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  bool at_one_of(Words ends) const {
    for (const std::string_view end : ends)
      if (t_.is_name(end)) return true;
    return false;
  }

  // Reads statements up to a block of one of these names, or to the end of the template.
  Body body(Words ends) {
    Body out;
    while (!t_.is(TokenKind::end)) {
      const int line = t_.now().line;
      if (t_.is(TokenKind::data)) {
        out.push_back({.kind = StatementKind::data, .line = line, .name = t_.take().text});
      } else if (t_.is(TokenKind::variable_begin)) {
        t_.take();
        out.push_back({.kind = StatementKind::output, .line = line, .value = e_.tuple()});
        t_.expect(TokenKind::variable_end);
      } else {
        t_.expect(TokenKind::block_begin);
        if (at_one_of(ends)) return out;
        statement(out);
        t_.expect(TokenKind::block_end);
      }
    }
    if (ends.size() > 0)
      throw SyntaxFault{t_.now().line,
                        fmt::format("a block that began in line {} has no {}",
                                    open_.empty() ? 1 : open_.back(), *(ends.end() - 1))};
    return out;
  }

  // Reads the end of a block's first tag, its statements, and the name of the tag that ends them.
  Body block(Words ends) {
    t_.skip_symbol(":");
    const int line = t_.now().line;
    t_.expect(TokenKind::block_end);
    if (open_.size() >= size_t(kDeepestBlock))
      throw SyntaxFault{t_.now().line,
                        fmt::format("blocks have more than {} levels", kDeepestBlock)};
    open_.push_back(line);
    Body out = body(ends);
    open_.pop_back();
    return out;
  }
  Body last_block(Words ends) {
    Body out = block(ends);
    t_.take();
    return out;
  }

  // The body of a function: a loop around it cannot be left from within.
  Body function_block(Words ends) {
    const int loops = std::exchange(loops_, 0);
    Body out = last_block(ends);
    loops_ = loops;
    return out;
  }

  void statement(Body& out) {
    const int line = t_.now().line;
    const std::string name = t_.take_name();
    if (name == "if") return out.push_back(condition(line));
    if (name == "for") return out.push_back(loop(line));
    if (name == "set") return out.push_back(set(line));
    if (name == "macro") return out.push_back(macro(line));
    if (name == "call") return out.push_back(call(line));
    if (name == "with") return out.push_back(with(line));
    if (name == "print") return print(line, out);
    if (name == "filter") {
      Statement s{.kind = StatementKind::filter, .line = line};
      s.value = e_.filters(nullptr, true);
      s.body = last_block({"endfilter"});
      return out.push_back(std::move(s));
    }
    if (name == "generation") {
      Statement s{.kind = StatementKind::generation, .line = line};
      s.body = function_block({"endgeneration"});
      generation_ = true;
      return out.push_back(std::move(s));
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw SyntaxFault{line, fmt::format("{} is not in a loop", name)};
      return out.push_back(
          {.kind = name == "break" ? StatementKind::stop : StatementKind::proceed, .line = line});
    }
    for (const std::string_view other :
         {"include", "import", "from", "extends", "block", "autoescape"})
      if (name == other)
        throw SyntaxFault{line, fmt::format("the block {} is not supported", name)};
    throw SyntaxFault{line, fmt::format("unexpected block {}", name)};
  }

  Statement condition(int line) {
    Statement s{.kind = StatementKind::condition, .line = line};
    while (true) {
      ExpressionPtr test = e_.tuple(false);
      s.branches.push_back({std::move(test), block({"elif", "else", "endif"})});
      const std::string end = t_.take_name();
      if (end == "elif") continue;
      if (end == "else") s.otherwise = last_block({"endif"});
      return s;
    }
  }

  Statement loop(int line) {
    Statement s{.kind = StatementKind::loop, .line = line};
    s.target = target(false);
    t_.expect_name("in");
    s.value = e_.tuple(false, false, "recursive");
    if (t_.skip_name("if")) s.test = e_.expression();
    s.recursive = t_.skip_name("recursive");
    ++loops_;
    s.body = block({"else", "endfor"});
    --loops_;
    if (t_.take_name() == "else") s.otherwise = last_block({"endfor"});
    return s;
  }

  Statement set(int line) {
    Statement s{.kind = StatementKind::set, .line = line};
    s.target = target(true);
    if (t_.skip_symbol("=")) {
      s.value = e_.tuple();
      return s;
    }
    s.kind = StatementKind::set_block;
    s.value = e_.filters(nullptr, false);
    s.body = last_block({"endset"});
    return s;
  }

  void parameters(Statement& s) {
    t_.expect_symbol("(");
    while (!t_.is_symbol(")")) {
      if (!s.parameters.empty()) t_.expect_symbol(",");
      const int line = t_.now().line;
      Parameter p{.name = assigned_name(), .otherwise = nullptr};
      if (t_.skip_symbol("="))
        p.otherwise = e_.expression();
      else if (!s.parameters.empty() && s.parameters.back().otherwise)
        throw SyntaxFault{t_.now().line,
                          "a parameter without a default follows one with a default"};
      if (p.name == "caller" && !p.otherwise)
        throw SyntaxFault{line, "the parameter caller needs a default"};
      s.parameters.push_back(std::move(p));
    }
    t_.expect_symbol(")");
  }

  void function(Statement& s, std::string_view end) {
    e_.macros.emplace_back();
    s.body = function_block({end});
    const auto names = e_.macros.back();
    e_.macros.pop_back();
    s.takes_list = names.list, s.takes_dict = names.dict, s.takes_caller = names.caller;
  }

  Statement macro(int line) {
    Statement s{.kind = StatementKind::macro, .line = line, .name = assigned_name()};
    parameters(s);
    function(s, "endmacro");
    return s;
  }

  Statement call(int line) {
    Statement s{.kind = StatementKind::call, .line = line, .name = "caller"};
    if (t_.is_symbol("(")) parameters(s);
    s.value = e_.expression();
    if (s.value->kind != ExpressionKind::call) throw SyntaxFault{line, "a block call needs a call"};
    function(s, "endcall");
    return s;
  }

  Statement with(int line) {
    Statement s{.kind = StatementKind::with, .line = line};
    while (!t_.is(TokenKind::block_end)) {
      if (!s.bindings.empty()) t_.expect_symbol(",");
      Target to = target(false);
      t_.expect_symbol("=");
      s.bindings.emplace_back(std::move(to), e_.expression());
    }
    s.body = last_block({"endwith"});
    return s;
  }

  void print(int line, Body& out) {
    bool first = true;
    while (!t_.is(TokenKind::block_end)) {
      if (!std::exchange(first, false)) t_.expect_symbol(",");
      out.push_back({.kind = StatementKind::output, .line = line, .value = e_.expression()});
    }
  }

  std::string assigned_name() {
    const int line = t_.now().line;
    std::string name = t_.take_name();
    for (const std::string_view fixed : {"true", "false", "none", "True", "False", "None"})
      if (name == fixed) throw SyntaxFault{line, fmt::format("{} cannot be assigned", name)};
    return name;
  }

  Target single_target(bool with_space) {
    if (t_.skip_symbol("(")) {
      Target inner = target(with_space);
      t_.expect_symbol(")");
      return inner;
    }
    const int line = t_.now().line;
    Target to{.name = assigned_name()};
    if (to.name == "loop" && (loops_ > 0 || !with_space))
      throw SyntaxFault{line, "the variable loop of a for loop cannot be assigned"};
    if (with_space && t_.skip_symbol(".")) {
      to.space = std::exchange(to.name, t_.take_name());
    }
    return to;
  }

  Target target(bool with_space) {
    if (++targets_ > kDeepestBlock)
      throw SyntaxFault{t_.now().line, "an assignment has too many levels"};
    Target to = single_target(with_space);
    if (t_.is_symbol(",")) {
      Target all{.is_several = true};
      all.several.push_back(std::move(to));
      while (t_.skip_symbol(",")) {
        if (!t_.is(TokenKind::name) && !t_.is_symbol("(")) break;
        if (t_.is_name("in")) break;
        all.several.push_back(single_target(with_space));
      }
      to = std::move(all);
    }
    --targets_;
    return to;
  }

  TokenReader t_;
  ExpressionParser e_;
  std::vector<int> open_;  // the lines of the open blocks
  int loops_ = 0, targets_ = 0;
  bool generation_ = false;
};

}  // namespace

Parsed parse_template(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace mtrain::data::jinja
