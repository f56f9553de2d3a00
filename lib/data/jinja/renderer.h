// Runs the tree of a template.
#pragma once
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/jinja/function.h"
#include "data/jinja/syntax.h"
#include "data/jinja/template.h"

namespace mtrain::data::jinja {

// The variables of a block. Names that it lacks are those of the block around it.
struct Scope {
  std::shared_ptr<Scope> around;
  std::vector<std::pair<std::string, Value>> names = {};

  Value* own(std::string_view name);
  void set(const std::string& name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Renderer final : public Machine {
 public:
  Renderer(const Limits& limits, bool track, std::optional<std::tm> now);
  ~Renderer() override;

  // Throws Fault; line() is then the line of the mistake.
  Rendered run(const Body& body, const Variables& variables);
  int line() const { return line_; }

  void charge(int64_t bytes) override;
  Value call(const Value& callee, Arguments arguments) override;
  std::string now(const std::string& form) override;

 private:
  enum class Flow { normal, stop, proceed };
  struct Output {
    std::string text;
    bool outermost = false;  // the template's own text
  };
  // Counts what runs inside each other.
  class Deeper {
   public:
    explicit Deeper(Renderer& renderer);
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  void step(int line);
  void append(Output& out, std::string_view text) const;
  ScopePtr inside(const ScopePtr& scope) const { return std::make_shared<Scope>(Scope{scope}); }

  Flow run_body(const Body& body, const ScopePtr& scope, Output& out);
  Flow run_statement(const Statement& s, const ScopePtr& scope, Output& out);
  Flow run_condition(const Statement& s, const ScopePtr& scope, Output& out);
  Flow run_loop(const Statement& s, const Value& over, const ScopePtr& scope, Output& out,
                int depth0);
  Flow run_block_text(const Statement& s, const ScopePtr& scope, Value& text);
  void run_generation(const Statement& s, const ScopePtr& scope, Output& out);
  Value run_macro(const Statement& s, const ScopePtr& scope, Arguments& arguments);
  Value make_macro(const Statement& s, const ScopePtr& scope);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  Value make_namespace(Arguments& arguments);

  Value evaluate(const Expression& e, const ScopePtr& scope);
  Value evaluate_parts(const Expression& e, const ScopePtr& scope);
  Value look_up(const std::string& name, const ScopePtr& scope) const;
  Value compare_all(const Expression& e, const ScopePtr& scope);
  Value concatenate(const Expression& e, const ScopePtr& scope);
  Value make_collection(const Expression& e, const ScopePtr& scope);
  Value call_expression(const Expression& e, const ScopePtr& scope, const Value* caller);
  Arguments arguments_of(const CallArguments& call, const ScopePtr& scope);
  // Applies a chain of filters whose first value is `text`.
  Value filtered(const Expression& e, const ScopePtr& scope, const Value& text);

  const Limits& limits_;
  const bool track_;
  const std::optional<std::tm> now_;
  int line_ = 1, depth_ = 0;
  int64_t steps_ = 0, bytes_ = 0;
  std::vector<std::pair<size_t, size_t>> generated_;
  std::list<Namespace> namespaces_;
  std::vector<std::weak_ptr<Scope>> captured_;  // by macros, which are values in such scopes
  Value namespace_function_;
};

}  // namespace mtrain::data::jinja
