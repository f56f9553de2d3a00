// The tree of a template.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/jinja/value.h"

namespace mtrain::data::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Body = std::vector<Statement>;

struct CallArguments {
  std::vector<ExpressionPtr> positional = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
  ExpressionPtr list = {}, dict = {};  // *list, **dict
};

enum class ExpressionKind {
  constant,
  name,
  list,         // parts
  tuple,        // parts
  dict,         // parts: key, value, key, value, ...
  conditional,  // parts: value, condition, other value or null
  both,         // parts: left and right
  either,       // parts: left or right
  negation,     // not parts[0]
  comparison,   // parts: first, second, ...; operators between them
  arithmetic,   // parts: left, right; operators[0]
  concat,       // parts joined by ~
  minus,
  plus,
  attribute,  // parts[0].name
  item,       // parts[0][parts[1]]
  slice,      // parts[0][parts[1]:parts[2]:parts[3]], each may be null
  call,       // parts[0](call)
  filter,     // parts[0] | name(call); parts[0] is null in blocks
  test,       // parts[0] is name(call)
};

struct Expression {
  ExpressionKind kind;
  int line;
  int depth = 1;  // of the tree below it
  std::string name = {};
  Value constant = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::string> operators = {};
  CallArguments call = {};
};

// What an assignment sets: a name, a member of a namespace (`space.name`), or several of them.
struct Target {
  std::string name = {}, space = {};
  std::vector<Target> several = {};
  bool is_several = false;
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;
};

enum class StatementKind {
  data,
  output,      // value
  condition,   // branches; `otherwise`
  loop,        // for target in value if test; body, otherwise
  set,         // target = value
  set_block,   // target = body, through the filters of value
  macro,       // name, parameters, body
  call,        // value is a call; parameters and body are of the caller
  filter,      // body through the filters of value
  with,        // bindings, body
  generation,  // body: the tokens of an assistant
  stop,        // break
  proceed,     // continue
};

struct Branch {
  ExpressionPtr test;
  Body body;
};

struct Statement {
  StatementKind kind;
  int line;
  std::string name = {};  // or the text of data
  ExpressionPtr value = {}, test = {};
  Target target = {};
  std::vector<Branch> branches = {};
  Body body = {}, otherwise = {};
  std::vector<Parameter> parameters = {};
  std::vector<std::pair<Target, ExpressionPtr>> bindings = {};
  bool recursive = false;                                             // of a loop
  bool takes_list = false, takes_dict = false, takes_caller = false;  // of a macro: names it reads
};

}  // namespace mtrain::data::jinja
