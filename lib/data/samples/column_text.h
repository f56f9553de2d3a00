// A text made from the columns of a row, such as "Context: {context} Question: {question} ".
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "data/build/json_line.h"

namespace mtrain::data {

// A place {column} is replaced by the text in that column. {a.b} is key b of column a, {a[0]} an
// item of a list, and {a[b]} the item whose number is in column b. {a|trim} is without white space
// at both ends. "{{" and "}}" are braces.
class ColumnText {
 public:
  // Throws UserError if braces do not match; `field` is the setting that has the text.
  ColumnText(std::string_view text, std::string_view field);

  // Returns false, and sets `fault`, if the row lacks a column or it holds no text. An absent item
  // of an empty list is an empty text.
  bool render(const nlohmann::ordered_json& row, LineFault& fault, std::string& out) const;

 private:
  struct Part {
    std::string text;  // as it is, or the name of the place
    bool place = false, trims = false;
    std::vector<std::string> steps = {};  // column, keys; an item is "[0]" or "[column]"
  };
  static Part read_place(std::string_view place, std::string_view field);

  std::vector<Part> parts_;
};

}  // namespace mtrain::data
