// The expressions of a template.
#include <utility>

#include "data/jinja/renderer.h"

namespace mtrain::data::jinja {

Value Renderer::evaluate(const Expression& e, const ScopePtr& scope) {
  if (e.kind == ExpressionKind::constant) return e.constant;
  step(e.line);
  if (e.kind == ExpressionKind::name) return look_up(e.name, scope);
  const Deeper deeper(*this);
  return evaluate_parts(e, scope);
}

Value Renderer::evaluate_parts(const Expression& e, const ScopePtr& scope) {
  const auto part = [&](size_t i) { return e.parts[i] ? evaluate(*e.parts[i], scope) : Value(); };
  switch (e.kind) {
    case ExpressionKind::list:
    case ExpressionKind::tuple:
    case ExpressionKind::dict: return make_collection(e, scope);
    case ExpressionKind::conditional:
      if (truth(part(1))) return part(0);
      if (e.parts[2]) return part(2);
      return Value::undefined(
          fmt::format("the condition in line {} is false, and it has no else", e.line));
    case ExpressionKind::both: {
      Value left = part(0);
      return truth(left) ? part(1) : left;
    }
    case ExpressionKind::either: {
      Value left = part(0);
      return truth(left) ? left : part(1);
    }
    case ExpressionKind::negation: return !truth(part(0));
    case ExpressionKind::comparison: return compare_all(e, scope);
    case ExpressionKind::arithmetic: {
      const Value left = part(0), right = part(1);
      line_ = e.line;
      return arithmetic(*this, e.operators[0], left, right);
    }
    case ExpressionKind::concat: return concatenate(e, scope);
    case ExpressionKind::minus: return negative(part(0));
    case ExpressionKind::plus: {
      const Value value = part(0);
      negative(value);  // the same values have both signs
      return value.is(Kind::boolean) ? Value(value.integer()) : value;
    }
    case ExpressionKind::attribute: return attribute(part(0), e.name);
    case ExpressionKind::item: {
      const Value object = part(0), key = part(1);
      return item(object, key);
    }
    case ExpressionKind::slice: {
      const Value object = part(0), begin = part(1), end = part(2), stride = part(3);
      Value result = slice(object, begin, end, stride);
      charge(result.is(Kind::text) ? int64_t(result.text().size())
                                   : length_of(result) * int64_t(sizeof(Value)));
      return result;
    }
    case ExpressionKind::call: return call_expression(e, scope, nullptr);
    case ExpressionKind::filter: {
      const Value value = part(0);
      Arguments arguments = arguments_of(e.call, scope);
      line_ = e.line;
      return apply_filter(*this, e.name, value, arguments);
    }
    case ExpressionKind::test: {
      const Value value = part(0);
      Arguments arguments = arguments_of(e.call, scope);
      line_ = e.line;
      return apply_test(*this, e.name, value, arguments);
    }
    case ExpressionKind::constant:
    case ExpressionKind::name: break;
  }
  throw BugError("a kind of expression");
}

Value Renderer::look_up(const std::string& name, const ScopePtr& scope) const {
  for (Scope* s = scope.get(); s; s = s->around.get())
    if (const Value* found = s->own(name)) return *found;
  if (name == "namespace") return namespace_function_;
  if (auto function = global(name)) return *function;
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

Value Renderer::compare_all(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*e.parts[0], scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    const std::string& op = e.operators[i];
    Value right = evaluate(*e.parts[i + 1], scope);
    line_ = e.line;
    const bool holds = op == "=="       ? equal(left, right)
                       : op == "!="     ? !equal(left, right)
                       : op == "in"     ? contains(right, left)
                       : op == "not in" ? !contains(right, left)
                       : op == "<"      ? compare(left, right) < 0
                       : op == "<="     ? compare(left, right) <= 0
                       : op == ">"      ? compare(left, right) > 0
                                        : compare(left, right) >= 0;
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Renderer::concatenate(const Expression& e, const ScopePtr& scope) {
  std::string text;
  for (const ExpressionPtr& part : e.parts) {
    text += to_text(evaluate(*part, scope));
    if (int64_t(text.size()) > kLargestValue) fail("a text has more than {} bytes", kLargestValue);
  }
  charge(int64_t(text.size()));
  return Value(std::move(text));
}

Value Renderer::make_collection(const Expression& e, const ScopePtr& scope) {
  std::vector<Value> values;
  for (const ExpressionPtr& part : e.parts) values.push_back(evaluate(*part, scope));
  charge(int64_t(values.size() * sizeof(Value)));
  if (e.kind == ExpressionKind::list) return Value::list(std::move(values));
  if (e.kind == ExpressionKind::tuple) return Value::tuple(std::move(values));
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < values.size(); i += 2)
    entries.emplace_back(std::move(values[i]), std::move(values[i + 1]));
  return make_dict(std::move(entries));
}

Arguments Renderer::arguments_of(const CallArguments& call, const ScopePtr& scope) {
  Arguments out;
  for (const ExpressionPtr& value : call.positional)
    out.positional.push_back(evaluate(*value, scope));
  for (const auto& [name, value] : call.named)
    out.named.emplace_back(name, evaluate(*value, scope));
  if (call.list)
    for (Value& value : elements_of(evaluate(*call.list, scope)))
      out.positional.push_back(std::move(value));
  if (call.dict) {
    const Value more = evaluate(*call.dict, scope);
    if (!more.is(Kind::dict))
      fail("** needs a dictionary, not a value of type {}", type_name(more));
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.is(Kind::text)) fail("** needs names as keys");
      out.named.emplace_back(key.text(), value);
    }
  }
  return out;
}

Value Renderer::call_expression(const Expression& e, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*e.parts[0], scope);
  Arguments arguments = arguments_of(e.call, scope);
  if (caller) arguments.named.emplace_back("caller", *caller);
  line_ = e.line;
  Value result = call(callee, std::move(arguments));
  line_ = e.line;
  return result;
}

Value Renderer::call(const Value& callee, Arguments arguments) {
  if (callee.is(Kind::undefined)) fail("{}", callee.why_undefined());
  if (callee.is(Kind::loop)) {
    const auto recurse = callee.loop().recurse;  // a copy: the loop may end during the call
    if (!recurse) fail("loop is called, but the loop is not marked as recursive");
    return recurse(arguments);
  }
  if (!callee.is(Kind::function)) fail("a value of type {} cannot be called", type_name(callee));
  const Function& function = callee.function();
  if (function.closure) return function.closure(arguments);
  return function.native(*this, function.self ? *function.self : Value(), arguments);
}

Value Renderer::filtered(const Expression& e, const ScopePtr& scope, const Value& text) {
  const Value value = e.parts[0] ? filtered(*e.parts[0], scope, text) : text;
  Arguments arguments = arguments_of(e.call, scope);
  line_ = e.line;
  return apply_filter(*this, e.name, value, arguments);
}

}  // namespace mtrain::data::jinja
