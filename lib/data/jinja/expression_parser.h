// Reads expressions, with the precedence of Jinja's operators.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/jinja/lexer.h"
#include "data/jinja/syntax.h"

namespace mtrain::data::jinja {

// The tokens of a template, and the place of the parser in them.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is(TokenKind kind) const { return now().kind == kind; }
  bool is_name(std::string_view name) const;
  bool is_symbol(std::string_view symbol) const;
  bool skip_name(std::string_view name);
  bool skip_symbol(std::string_view symbol);
  void expect(TokenKind kind);
  void expect_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  std::string take_name();
  [[noreturn]] void unexpected(std::string_view expected) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& tokens) : t_(tokens) {}

  ExpressionPtr expression(bool conditional = true);
  // Reads an expression, or several with commas between them. `end`: a name that ends it, too.
  ExpressionPtr tuple(bool conditional = true, bool parentheses = false, std::string_view end = "");
  ExpressionPtr primary();
  ExpressionPtr filters(ExpressionPtr value, bool begun);
  CallArguments call_arguments();

  // The names that were read since the last macro began, for its varargs, kwargs and caller.
  struct SpecialNames {
    bool list = false, dict = false, caller = false;
  };
  std::vector<SpecialNames> macros = {};

 private:
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr filters_and_tests(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr list();
  ExpressionPtr dict();
  void note_name(const std::string& name);

  TokenReader& t_;
  int nested_ = 0;
};

}  // namespace mtrain::data::jinja
