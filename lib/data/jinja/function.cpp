#include "data/jinja/function.h"

#include <algorithm>

namespace mtrain::data::jinja {

Parameters::Parameters(std::string_view function, Arguments& arguments,
                       std::initializer_list<const char*> names, size_t required)
    : function_(function), names_(names), values_(names.size()) {
  if (arguments.positional.size() > names_.size())
    fail("{} takes at most {} arguments, not {}", function_, names_.size(),
         arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i)
    values_[i] = std::move(arguments.positional[i]);
  for (auto& [name, value] : arguments.named) {
    const auto at = std::ranges::find(names_, std::string_view(name));
    if (at == names_.end()) fail("{} has no argument {}", function_, name);
    auto& slot = values_[size_t(at - names_.begin())];
    if (slot) fail("{} gets its argument {} twice", function_, name);
    slot = std::move(value);
  }
  for (size_t i = 0; i < required; ++i)
    if (!values_[i]) fail("{} needs the argument {}", function_, names_[i]);
}

int64_t Parameters::integer(size_t i, int64_t otherwise) const {
  if (!is_set(i)) return otherwise;
  if (!values_[i]->is_integral())
    fail("{}: {} is of type {}, not an integer", function_, names_[i], type_name(*values_[i]));
  return values_[i]->integer();
}

bool Parameters::boolean(size_t i, bool otherwise) const {
  return has(i) ? truth(*values_[i]) : otherwise;
}

const std::string& Parameters::text(size_t i) const {
  if (!has(i) || !values_[i]->is(Kind::text))
    fail("{}: {} is of type {}, not a text", function_, names_[i],
         has(i) ? type_name(*values_[i]) : "None");
  return values_[i]->text();
}

const std::string* Parameters::optional_text(size_t i) const {
  return is_set(i) ? &text(i) : nullptr;
}

bool Loop::next() {
  Value element;
  if (!ahead.empty()) {
    element = std::move(ahead.front());
    ahead.pop_front();
  } else if (!read(element)) {
    return false;
  }
  ++index0;
  before = std::move(current);
  current = std::move(element);
  return true;
}

bool Loop::peek() {
  if (!ahead.empty()) return true;
  Value element;
  if (!read(element)) return false;
  ahead.push_back(std::move(element));
  return true;
}

int64_t Loop::length() {
  if (!known_length) {
    Value element;
    while (read(element)) ahead.push_back(std::move(element));
    known_length = index0 + 1 + int64_t(ahead.size());
  }
  return *known_length;
}

}  // namespace mtrain::data::jinja
