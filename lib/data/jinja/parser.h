// Reads a template into its tree.
#pragma once
#include <string_view>

#include "data/jinja/lexer.h"
#include "data/jinja/syntax.h"

namespace mtrain::data::jinja {

struct Parsed {
  Body body;
  bool generation = false;  // it has a block `generation`
};

Parsed parse_template(std::string_view source);  // throws SyntaxFault

}  // namespace mtrain::data::jinja
