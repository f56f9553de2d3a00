// Names of other systems that say the same in other units or words.
#include "base/strings.h"
#include "recipe/given.h"

namespace mtrain {
namespace {

bool truth(const std::string& text) {
  const std::string word = to_lower(text);
  return word == "true" || word == "yes" || word == "on";
}

bool falsehood(const std::string& text) {
  const std::string word = to_lower(text);
  return word == "false" || word == "no" || word == "off" || word.empty();
}

// A text that is neither true nor false is passed on, so that the field's own message refuses it.
std::string choose(const std::string& text, const char* if_true, const char* if_false) {
  return truth(text) ? if_true : falsehood(text) ? if_false : text;
}

}  // namespace

const std::vector<Conversion>& conversions() {
  static const std::vector<Conversion> list{
      {"model.gated_linear_unit", "model.activation",
       [](const std::string& t) { return choose(t, "swiglu", "gelu"); }},
  };
  return list;
}

}  // namespace mtrain
