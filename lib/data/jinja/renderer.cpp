#include "data/jinja/renderer.h"

#include <algorithm>
#include <utility>

namespace mtrain::data::jinja {

Renderer::Deeper::Deeper(Renderer& renderer) : depth_(renderer.depth_) {
  if (++depth_ <= renderer.limits_.depth) return;
  --depth_;
  fail("the template calls itself without end, or nests too deeply");
}

Value* Scope::own(std::string_view name) {
  for (auto& [key, value] : names)
    if (key == name) return &value;
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  if (Value* known = own(name))
    *known = std::move(value);
  else
    names.emplace_back(name, std::move(value));
}

Renderer::Renderer(const Limits& limits, bool track, std::optional<std::tm> now)
    : limits_(limits), track_(track), now_(now) {
  namespace_function_ = Value(std::make_shared<const Function>(Function{
      .name = "namespace", .closure = [this](Arguments& a) { return make_namespace(a); }}));
}

Renderer::~Renderer() {
  // A macro holds its scope, which holds the macro.
  for (const auto& captured : captured_)
    if (const ScopePtr scope = captured.lock()) scope->names.clear();
}

Rendered Renderer::run(const Body& body, const Variables& variables) {
  const auto scope = std::make_shared<Scope>();
  scope->names = variables;
  Output out{.outermost = true};
  run_body(body, scope, out);
  return {std::move(out.text), std::move(generated_)};
}

void Renderer::step(int line) {
  line_ = line;
  if (++steps_ > limits_.steps)
    fail("the template does not end: it was stopped after {} steps", limits_.steps);
}

void Renderer::charge(int64_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits_.value_bytes)
    fail("the template grows without end: its values took more than {} bytes", limits_.value_bytes);
}

void Renderer::append(Output& out, std::string_view text) const {
  if (int64_t(out.text.size() + text.size()) > limits_.text_bytes)
    fail("the template grows without end: its text has more than {} bytes", limits_.text_bytes);
  out.text += text;
}

Renderer::Flow Renderer::run_body(const Body& body, const ScopePtr& scope, Output& out) {
  const Deeper deeper(*this);
  for (const Statement& s : body)
    if (const Flow flow = run_statement(s, scope, out); flow != Flow::normal) return flow;
  return Flow::normal;
}

Renderer::Flow Renderer::run_statement(const Statement& s, const ScopePtr& scope, Output& out) {
  step(s.line);
  switch (s.kind) {
    case StatementKind::data: append(out, s.name); return Flow::normal;
    case StatementKind::output:
      append(out, to_text(evaluate(*s.value, scope)));
      return Flow::normal;
    case StatementKind::condition: return run_condition(s, scope, out);
    case StatementKind::loop: return run_loop(s, evaluate(*s.value, scope), scope, out, 0);
    case StatementKind::set:
      assign(s.target, evaluate(*s.value, scope), scope);
      return Flow::normal;
    case StatementKind::set_block: {
      Value text;
      const Flow flow = run_block_text(s, scope, text);
      if (flow == Flow::normal) assign(s.target, text, scope);
      return flow;
    }
    case StatementKind::macro: scope->set(s.name, make_macro(s, scope)); return Flow::normal;
    case StatementKind::call: {
      const Value caller = make_macro(s, scope);
      append(out, to_text(call_expression(*s.value, scope, &caller)));
      return Flow::normal;
    }
    case StatementKind::filter: {
      Value text;
      const Flow flow = run_block_text(s, scope, text);
      if (flow == Flow::normal) append(out, to_text(text));
      return flow;
    }
    case StatementKind::with: {
      const ScopePtr inner = inside(scope);
      for (const auto& [target, value] : s.bindings) assign(target, evaluate(*value, scope), inner);
      return run_body(s.body, inner, out);
    }
    case StatementKind::generation: run_generation(s, scope, out); return Flow::normal;
    case StatementKind::stop: return Flow::stop;
    case StatementKind::proceed: return Flow::proceed;
  }
  throw BugError("a kind of statement");
}

Renderer::Flow Renderer::run_condition(const Statement& s, const ScopePtr& scope, Output& out) {
  for (const Branch& branch : s.branches)
    if (truth(evaluate(*branch.test, scope))) return run_body(branch.body, scope, out);
  return run_body(s.otherwise, scope, out);
}

namespace {

// Returns a function that reads the elements of a value one by one, and sets the length if it is
// known before.
std::function<bool(Value&)> reader_of(const Value& over, std::optional<int64_t>& length) {
  if (over.is(Kind::iteration))
    return [over](Value& element) {
      Iteration& it = over.iteration();
      if (it.at == it.items->values.size()) return false;
      element = it.items->values[it.at++];
      return true;
    };
  std::shared_ptr<const Items> items = over.shared_items();
  if (!items) items = std::make_shared<const Items>(Items{.values = elements_of(over)});
  length = int64_t(items->values.size());
  return [items, at = size_t(0)](Value& element) mutable {
    if (at == items->values.size()) return false;
    element = items->values[at++];
    return true;
  };
}

// A loop's functions hold scopes, which may hold the loop.
struct EndLoop {
  Loop& loop;
  ~EndLoop() {
    loop.read = [](Value&) { return false; }, loop.recurse = nullptr;
  }
};

}  // namespace

Renderer::Flow Renderer::run_loop(const Statement& s, const Value& over, const ScopePtr& scope,
                                  Output& out, int depth0) {
  const Deeper deeper(*this);
  if (over.is(Kind::text) || over.is(Kind::dict)) charge(length_of(over) * 64);
  const auto loop = std::make_shared<Loop>();
  const EndLoop end{*loop};
  loop->depth0 = depth0;
  loop->read = reader_of(over, loop->known_length);
  if (s.test) {
    loop->known_length.reset();
    loop->read = [this, &s, scope, all = std::move(loop->read)](Value& element) {
      while (all(element)) {
        const ScopePtr inner = inside(scope);
        assign(s.target, element, inner);
        step(s.line);
        if (truth(evaluate(*s.test, inner))) return true;
      }
      return false;
    };
  }
  if (s.recursive)
    loop->recurse = [this, &s, scope, depth0](Arguments& a) {
      const Parameters p("loop", a, {"iterable"}, 1);
      Output text;
      run_loop(s, p[0], scope, text, depth0 + 1);
      charge(int64_t(text.text.size()));
      return Value(std::move(text.text));
    };
  while (loop->next()) {
    step(s.line);
    const ScopePtr inner = inside(scope);
    inner->set("loop", Value(loop));
    assign(s.target, *loop->current, inner);
    if (run_body(s.body, inner, out) == Flow::stop) break;
  }
  return loop->index0 < 0 ? run_body(s.otherwise, inside(scope), out) : Flow::normal;
}

Renderer::Flow Renderer::run_block_text(const Statement& s, const ScopePtr& scope, Value& text) {
  Output out;
  const Flow flow = run_body(s.body, inside(scope), out);
  charge(int64_t(out.text.size()));
  text = Value(std::move(out.text));
  if (s.value) text = filtered(*s.value, scope, text);
  return flow;
}

void Renderer::run_generation(const Statement& s, const ScopePtr& scope, Output& out) {
  if (track_ && !out.outermost)
    fail(
        "the block generation is in a macro, an assignment or another such block, so its place in "
        "the text is not known");
  Output text;
  run_body(s.body, inside(scope), text);
  append(out, text.text);
  if (track_) generated_.emplace_back(out.text.size() - text.text.size(), out.text.size());
}

Value Renderer::make_macro(const Statement& s, const ScopePtr& scope) {
  if (captured_.empty() || captured_.back().lock() != scope) captured_.push_back(scope);
  charge(int64_t(sizeof(Function)));
  return Value(std::make_shared<const Function>(
      Function{.name = s.name,
               .closure = [this, &s, scope](Arguments& a) { return run_macro(s, scope, a); }}));
}

Value Renderer::run_macro(const Statement& s, const ScopePtr& scope, Arguments& arguments) {
  const Deeper deeper(*this);
  const ScopePtr inner = inside(scope);
  auto& named = arguments.named;
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    const auto at = std::ranges::find(named, name, &std::pair<std::string, Value>::first);
    if (at == named.end()) return std::nullopt;
    Value value = std::move(at->second);
    named.erase(at);
    return value;
  };
  const size_t given = std::min(arguments.positional.size(), s.parameters.size());
  for (size_t i = 0; i < given; ++i) inner->set(s.parameters[i].name, arguments.positional[i]);
  std::vector<const Parameter*> absent;
  bool has_caller = false;
  for (const Parameter& p : s.parameters) has_caller = has_caller || p.name == "caller";
  for (size_t i = given; i < s.parameters.size(); ++i) {
    const Parameter& p = s.parameters[i];
    if (auto value = take(p.name))
      inner->set(p.name, std::move(*value));
    else
      absent.push_back(&p);
  }
  if (s.takes_caller && !has_caller) {
    auto caller = take("caller");
    inner->set("caller", caller ? std::move(*caller) : Value::undefined("no caller is defined"));
  }
  if (s.takes_dict) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : named) entries.emplace_back(name, std::move(value));
    inner->set("kwargs", make_dict(std::move(entries)));
  } else if (!named.empty()) {
    fail("the macro {} has no parameter {}", s.name, named[0].first);
  }
  const auto rest = arguments.positional.begin() + int64_t(given);
  if (s.takes_list)
    inner->set("varargs", Value::tuple({rest, arguments.positional.end()}));
  else if (rest != arguments.positional.end())
    fail("the macro {} has {} parameters, and gets {}", s.name, s.parameters.size(),
         arguments.positional.size());
  for (const Parameter* p : absent)
    inner->set(p->name, p->otherwise ? evaluate(*p->otherwise, inner)
                                     : Value::undefined(fmt::format(
                                           "parameter '{}' was not provided", p->name)));
  Output out;
  run_body(s.body, inner, out);
  charge(int64_t(out.text.size()));
  return Value(std::move(out.text));
}

void Renderer::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (target.is_several) {
    if (!is_iterable(value)) fail("a value of type {} cannot be unpacked", type_name(value));
    const std::vector<Value> parts = elements_of(value);
    if (parts.size() != target.several.size())
      fail("{} values are assigned to {} names", parts.size(), target.several.size());
    for (size_t i = 0; i < parts.size(); ++i) assign(target.several[i], parts[i], scope);
  } else if (target.space.empty()) {
    scope->set(target.name, value);
  } else {
    const Value space = look_up(target.space, scope);
    if (!space.is(Kind::space))
      fail("{}.{} is assigned, but {} is not a namespace", target.space, target.name, target.space);
    if (target.name.starts_with('_')) fail("a namespace has no members like {}", target.name);
    if (Value* member = space.space().find(target.name))
      *member = value;
    else
      space.space().members.emplace_back(target.name, value);
  }
}

Value Renderer::make_namespace(Arguments& arguments) {
  const Value members = call(*global("dict"), std::move(arguments));
  charge(int64_t(sizeof(Namespace)) + 64);
  Namespace& space = namespaces_.emplace_back();
  for (const auto& [key, value] : members.dict().entries) {
    if (!key.is(Kind::text)) fail("a namespace has names, not keys of type {}", type_name(key));
    if (key.text().starts_with('_')) fail("a namespace has no members like {}", key.text());
    space.members.emplace_back(key.text(), value);
  }
  return Value(&space);
}

std::string Renderer::now(const std::string& form) {
  std::tm time{};
  if (now_) {
    time = *now_;
  } else {
    const std::time_t clock = std::time(nullptr);
    localtime_r(&clock, &time);
  }
  if (form.empty()) return "";
  std::string text(16 * form.size() + 256, '\0');
  if (form.size() > 1000) fail("strftime_now: the format has {} bytes", form.size());
  // The mark distinguishes an empty text from one that does not fit.
  text.resize(std::strftime(text.data(), text.size(), (form + "|").c_str(), &time));
  if (text.empty()) fail("strftime_now: the time does not fit");
  text.pop_back();
  return text;
}

}  // namespace mtrain::data::jinja
