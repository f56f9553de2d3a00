// Cuts a template into tokens. Blocks are trimmed as transformers configures Jinja: a line break
// after a block is dropped (trim_blocks), and so are spaces before a block that begins its line
// (lstrip_blocks).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/jinja/value.h"

namespace mtrain::data::jinja {

enum class TokenKind {
  data,            // text between tags
  variable_begin,  // {{
  variable_end,
  block_begin,  // {%
  block_end,
  name,
  literal,  // a text or a number
  symbol,   // an operator or a bracket
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 1;
  std::string text = {};  // of data, a name or a symbol
  Value value = {};       // of a literal
};

// A mistake in a template's syntax.
struct SyntaxFault {
  int line;
  std::string why;
};

std::vector<Token> tokenize(std::string_view source);  // ends with TokenKind::end

}  // namespace mtrain::data::jinja
