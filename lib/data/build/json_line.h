// Reads a JSON line of the input of `data build`, or finds out why it cannot be used.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"

namespace mtrain::data {

// Why a JSON line cannot be used, and what to do.
struct LineFault {
  std::string why, hint = "fix the line, or leave such lines out: --skip-bad-lines";
};

// Returns the texts of these fields of a JSON line. If the line lacks one, returns nothing and sets
// `fault`. `earlier`: lines before it had the fields.
std::optional<std::vector<std::string>> texts_of_line(std::string_view line,
                                                      const std::vector<std::string>& fields,
                                                      bool earlier, LineFault& fault);

struct ChatLine {
  bool headers = false;        // as in training_text()
  bool plain = false;          // as in read_conversation()
  std::string otherwise = {};  // the field that is read if the line lacks the other; empty: none
};

// Returns the text of the conversation in this field, for training. If there is none, or the
// template refuses it, returns nothing and sets `fault`.
std::optional<ChatText> chat_of_line(std::string_view line, const std::string& field,
                                     const ChatTemplate& chat, LineFault& fault,
                                     const ChatLine& how = {});

}  // namespace mtrain::data
