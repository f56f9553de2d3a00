#include "data/jinja/expression_parser.h"

#include <algorithm>
#include <utility>

namespace mtrain::data::jinja {
namespace {

constexpr int kDeepestExpression = 300;  // of operators and brackets in each other

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::data: return "text";
    case TokenKind::variable_begin: return "{{";
    case TokenKind::variable_end: return "}}";
    case TokenKind::block_begin: return "{%";
    case TokenKind::block_end: return "%}";
    case TokenKind::literal: return to_repr(token.value);
    case TokenKind::end: return "the end of the template";
    default: return token.text;
  }
}

int depth_of(const ExpressionPtr& part) { return part ? part->depth : 0; }

ExpressionPtr make(Expression expression) {
  int depth = 0;
  for (const ExpressionPtr& part : expression.parts) depth = std::max(depth, depth_of(part));
  for (const ExpressionPtr& part : expression.call.positional)
    depth = std::max(depth, depth_of(part));
  for (const auto& [name, part] : expression.call.named) depth = std::max(depth, depth_of(part));
  depth = std::max({depth, depth_of(expression.call.list), depth_of(expression.call.dict)});
  expression.depth = depth + 1;
  if (expression.depth > kDeepestExpression)
    throw SyntaxFault{expression.line,
                      fmt::format("an expression has more than {} levels", kDeepestExpression)};
  return std::make_unique<const Expression>(std::move(expression));
}

ExpressionPtr constant(int line, Value value) {
  return make({.kind = ExpressionKind::constant, .line = line, .constant = std::move(value)});
}

template <class... Parts>
std::vector<ExpressionPtr> parts_of(Parts... parts) {
  std::vector<ExpressionPtr> all;
  (all.push_back(std::move(parts)), ...);
  return all;
}

bool is_comparison(const Token& token) {
  if (token.kind != TokenKind::symbol) return false;
  for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="})
    if (token.text == op) return true;
  return false;
}

}  // namespace

Token TokenReader::take() {
  const Token token = now();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}
bool TokenReader::is_name(std::string_view name) const {
  return is(TokenKind::name) && now().text == name;
}
bool TokenReader::is_symbol(std::string_view symbol) const {
  return is(TokenKind::symbol) && now().text == symbol;
}
bool TokenReader::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}
bool TokenReader::skip_symbol(std::string_view symbol) {
  if (!is_symbol(symbol)) return false;
  take();
  return true;
}
void TokenReader::expect(TokenKind kind) {
  if (!is(kind)) unexpected(describe({kind, 0, "a name", {}}));
  take();
}
void TokenReader::expect_name(std::string_view name) {
  if (!skip_name(name)) unexpected(name);
}
void TokenReader::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) unexpected(symbol);
}
std::string TokenReader::take_name() {
  if (!is(TokenKind::name)) unexpected("a name");
  return take().text;
}
void TokenReader::unexpected(std::string_view expected) const {
  throw SyntaxFault{now().line, fmt::format("expected {}, found {}", expected, describe(now()))};
}

// Guards the parser's own recursion.
#define MT_NEST()                                                                                \
  if (++nested_ > kDeepestExpression)                                                            \
    throw SyntaxFault{t_.now().line,                                                             \
                      fmt::format("an expression has more than {} levels", kDeepestExpression)}; \
  struct Leave {                                                                                 \
    int& n;                                                                                      \
    ~Leave() { --n; }                                                                            \
  } leave {                                                                                      \
    nested_                                                                                      \
  }

ExpressionPtr ExpressionParser::expression(bool conditional) {
  MT_NEST();
  ExpressionPtr value = either();
  while (conditional && t_.is_name("if")) {
    const int line = t_.take().line;
    ExpressionPtr condition = either();
    ExpressionPtr otherwise = t_.skip_name("else") ? expression() : nullptr;
    value = make({.kind = ExpressionKind::conditional,
                  .line = line,
                  .parts = parts_of(std::move(value), std::move(condition), std::move(otherwise))});
  }
  return value;
}

ExpressionPtr ExpressionParser::either() {
  ExpressionPtr left = both();
  while (t_.is_name("or")) {
    const int line = t_.take().line;
    left = make(
        {.kind = ExpressionKind::either, .line = line, .parts = parts_of(std::move(left), both())});
  }
  return left;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr left = negation();
  while (t_.is_name("and")) {
    const int line = t_.take().line;
    left = make({.kind = ExpressionKind::both,
                 .line = line,
                 .parts = parts_of(std::move(left), negation())});
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!t_.is_name("not")) return comparison();
  MT_NEST();
  const int line = t_.take().line;
  return make({.kind = ExpressionKind::negation, .line = line, .parts = parts_of(negation())});
}

ExpressionPtr ExpressionParser::comparison() {
  Expression all{.kind = ExpressionKind::comparison, .line = t_.now().line};
  all.parts.push_back(sum());
  while (true) {
    if (is_comparison(t_.now())) {
      all.operators.push_back(t_.take().text);
    } else if (t_.skip_name("in")) {
      all.operators.push_back("in");
    } else if (t_.is_name("not") && t_.after().kind == TokenKind::name && t_.after().text == "in") {
      t_.take(), t_.take();
      all.operators.push_back("not in");
    } else {
      break;
    }
    all.parts.push_back(sum());
  }
  return all.operators.empty() ? std::move(all.parts[0]) : make(std::move(all));
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concat();
  while (t_.is_symbol("+") || t_.is_symbol("-")) {
    const Token op = t_.take();
    left = make({.kind = ExpressionKind::arithmetic,
                 .line = op.line,
                 .parts = parts_of(std::move(left), concat()),
                 .operators = {op.text}});
  }
  return left;
}

ExpressionPtr ExpressionParser::concat() {
  Expression all{.kind = ExpressionKind::concat, .line = t_.now().line};
  all.parts.push_back(product());
  while (t_.skip_symbol("~")) all.parts.push_back(product());
  return all.parts.size() == 1 ? std::move(all.parts[0]) : make(std::move(all));
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  while (t_.is_symbol("*") || t_.is_symbol("/") || t_.is_symbol("//") || t_.is_symbol("%")) {
    const Token op = t_.take();
    left = make({.kind = ExpressionKind::arithmetic,
                 .line = op.line,
                 .parts = parts_of(std::move(left), power()),
                 .operators = {op.text}});
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary();
  while (t_.is_symbol("**")) {
    const Token op = t_.take();
    left = make({.kind = ExpressionKind::arithmetic,
                 .line = op.line,
                 .parts = parts_of(std::move(left), unary()),
                 .operators = {op.text}});
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  ExpressionPtr value;
  if (t_.is_symbol("-") || t_.is_symbol("+")) {
    MT_NEST();
    const Token op = t_.take();
    value = make({.kind = op.text == "-" ? ExpressionKind::minus : ExpressionKind::plus,
                  .line = op.line,
                  .parts = parts_of(unary(false))});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filters_and_tests(std::move(value)) : std::move(value);
}

void ExpressionParser::note_name(const std::string& name) {
  for (SpecialNames& names : macros) {
    names.list = names.list || name == "varargs";
    names.dict = names.dict || name == "kwargs";
    names.caller = names.caller || name == "caller";
  }
}

ExpressionPtr ExpressionParser::primary() {
  const int line = t_.now().line;
  if (t_.is(TokenKind::name)) {
    const std::string name = t_.take().text;
    if (name == "true" || name == "True") return constant(line, true);
    if (name == "false" || name == "False") return constant(line, false);
    if (name == "none" || name == "None") return constant(line, Value());
    note_name(name);
    return make({.kind = ExpressionKind::name, .line = line, .name = name});
  }
  if (t_.is(TokenKind::literal)) {
    Value value = t_.take().value;
    if (!value.is(Kind::text)) return constant(line, value);
    std::string text = value.text();  // texts beside each other are one
    while (t_.is(TokenKind::literal) && t_.now().value.is(Kind::text))
      text += t_.take().value.text();
    return constant(line, Value(std::move(text)));
  }
  if (t_.skip_symbol("(")) {
    ExpressionPtr value = tuple(true, true);
    t_.expect_symbol(")");
    return value;
  }
  if (t_.is_symbol("[")) return list();
  if (t_.is_symbol("{")) return dict();
  t_.unexpected("an expression");
}

ExpressionPtr ExpressionParser::tuple(bool conditional, bool parentheses, std::string_view end) {
  Expression all{.kind = ExpressionKind::tuple, .line = t_.now().line};
  bool is_tuple = false;
  while (true) {
    if (!all.parts.empty()) t_.expect_symbol(",");
    if (t_.is(TokenKind::variable_end) || t_.is(TokenKind::block_end) || t_.is_symbol(")") ||
        (!end.empty() && t_.is_name(end)))
      break;
    all.parts.push_back(expression(conditional));
    if (!t_.is_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !all.parts.empty()) return std::move(all.parts[0]);
  if (!is_tuple && !parentheses) t_.unexpected("an expression");
  return make(std::move(all));
}

ExpressionPtr ExpressionParser::list() {
  Expression all{.kind = ExpressionKind::list, .line = t_.now().line};
  t_.expect_symbol("[");
  while (!t_.is_symbol("]")) {
    if (!all.parts.empty()) t_.expect_symbol(",");
    if (t_.is_symbol("]")) break;
    all.parts.push_back(expression());
  }
  t_.expect_symbol("]");
  return make(std::move(all));
}

ExpressionPtr ExpressionParser::dict() {
  Expression all{.kind = ExpressionKind::dict, .line = t_.now().line};
  t_.expect_symbol("{");
  while (!t_.is_symbol("}")) {
    if (!all.parts.empty()) t_.expect_symbol(",");
    if (t_.is_symbol("}")) break;
    all.parts.push_back(expression());
    t_.expect_symbol(":");
    all.parts.push_back(expression());
  }
  t_.expect_symbol("}");
  return make(std::move(all));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    if (t_.is_symbol(".") || t_.is_symbol("[")) {
      value = subscript(std::move(value));
    } else if (t_.is_symbol("(")) {
      const int line = t_.now().line;
      CallArguments call = call_arguments();
      value = make({.kind = ExpressionKind::call,
                    .line = line,
                    .parts = parts_of(std::move(value)),
                    .call = std::move(call)});
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr value) {
  while (true) {
    if (t_.is_symbol("|")) {
      value = filters(std::move(value), false);
    } else if (t_.is_name("is")) {
      value = test(std::move(value));
    } else if (t_.is_symbol("(")) {
      const int line = t_.now().line;
      CallArguments call = call_arguments();
      value = make({.kind = ExpressionKind::call,
                    .line = line,
                    .parts = parts_of(std::move(value)),
                    .call = std::move(call)});
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
  const Token token = t_.take();
  if (token.text == ".") {
    if (t_.is(TokenKind::name))
      return make({.kind = ExpressionKind::attribute,
                   .line = token.line,
                   .name = t_.take().text,
                   .parts = parts_of(std::move(value))});
    if (!t_.is(TokenKind::literal) || !t_.now().value.is(Kind::integer))
      t_.unexpected("a name or a number");
    ExpressionPtr index = constant(token.line, t_.take().value);
    return make({.kind = ExpressionKind::item,
                 .line = token.line,
                 .parts = parts_of(std::move(value), std::move(index))});
  }
  std::vector<ExpressionPtr> bounds;
  bool is_slice = t_.is_symbol(":");
  bounds.push_back(is_slice ? nullptr : expression());
  while (t_.skip_symbol(":")) {
    is_slice = true;
    if (bounds.size() == 3) t_.unexpected("]");
    const bool absent = t_.is_symbol(":") || t_.is_symbol("]");
    bounds.push_back(absent ? nullptr : expression());
  }
  t_.expect_symbol("]");
  bounds.insert(bounds.begin(), std::move(value));
  bounds.resize(is_slice ? 4 : 2);
  return make({.kind = is_slice ? ExpressionKind::slice : ExpressionKind::item,
               .line = token.line,
               .parts = std::move(bounds)});
}

CallArguments ExpressionParser::call_arguments() {
  MT_NEST();
  CallArguments call;
  const int line = t_.now().line;
  const auto require = [&](bool ok) {
    if (!ok) throw SyntaxFault{line, "the arguments of a call have a wrong order"};
  };
  t_.expect_symbol("(");
  for (bool first = true; !t_.is_symbol(")"); first = false) {
    if (!first) t_.expect_symbol(",");
    if (t_.is_symbol(")")) break;
    if (t_.skip_symbol("*")) {
      require(!call.list && !call.dict);
      call.list = expression();
    } else if (t_.skip_symbol("**")) {
      require(!call.dict);
      call.dict = expression();
    } else if (t_.is(TokenKind::name) && t_.after().kind == TokenKind::symbol &&
               t_.after().text == "=") {
      require(!call.dict);
      std::string name = t_.take_name();
      t_.take();
      call.named.emplace_back(std::move(name), expression());
    } else {
      require(!call.list && !call.dict && call.named.empty());
      call.positional.push_back(expression());
    }
  }
  t_.expect_symbol(")");
  return call;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value, bool begun) {
  while (begun || t_.is_symbol("|")) {
    if (!std::exchange(begun, false)) t_.take();
    const int line = t_.now().line;
    std::string name = t_.take_name();
    while (t_.skip_symbol(".")) name += "." + t_.take_name();
    CallArguments call;
    if (t_.is_symbol("(")) call = call_arguments();
    value = make({.kind = ExpressionKind::filter,
                  .line = line,
                  .name = std::move(name),
                  .parts = parts_of(std::move(value)),
                  .call = std::move(call)});
  }
  return value;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  const int line = t_.take().line;
  const bool negated = t_.skip_name("not");
  std::string name = t_.take_name();
  while (t_.skip_symbol(".")) name += "." + t_.take_name();
  CallArguments call;
  const bool word =
      t_.is(TokenKind::name) && !t_.is_name("else") && !t_.is_name("or") && !t_.is_name("and");
  if (t_.is_symbol("(")) {
    call = call_arguments();
  } else if (word || t_.is(TokenKind::literal) || t_.is_symbol("[") || t_.is_symbol("{")) {
    if (t_.is_name("is")) throw SyntaxFault{line, "tests cannot be chained with `is`"};
    call.positional.push_back(postfix(primary()));
  }
  ExpressionPtr result = make({.kind = ExpressionKind::test,
                               .line = line,
                               .name = std::move(name),
                               .parts = parts_of(std::move(value)),
                               .call = std::move(call)});
  if (!negated) return result;
  return make(
      {.kind = ExpressionKind::negation, .line = line, .parts = parts_of(std::move(result))});
}

#undef MT_NEST

}  // namespace mtrain::data::jinja
