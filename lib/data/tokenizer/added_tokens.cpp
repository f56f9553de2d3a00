#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  if (token.single_word && !word_)
    word_ = std::make_shared<const Regex>(Regex::native(kWordCharacters));
  auto& list = by_first_byte_[uint8_t(token.content[0])];
  const auto shorter = [&](uint32_t i) { return tokens_[i].content.size() < token.content.size(); };
  list.insert(std::find_if(list.begin(), list.end(), shorter), uint32_t(tokens_.size()));
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::token_at(std::string_view text, size_t at) const {
  for (uint32_t i : by_first_byte_[uint8_t(text[at])])
    if (text.substr(at).starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  Regex::Scratch scratch(*word_);
  std::string storage;
  const auto is_word = [&](std::string_view character) {
    size_t b = 0, e = 0;
    return word_->find(with_stand_ins(character, storage), 0, scratch, b, e);
  };
  const size_t before = last_character(text.substr(0, begin));
  const size_t after = end < text.size() ? utf8_length(text, end) : 0;
  return !(before > 0 && is_word(text.substr(begin - before, before))) &&
         !(after > 0 && is_word(text.substr(end, after)));
}

bool AddedTokens::next(std::string_view text, Cursor& cursor, Match& match) const {
  if (tokens_.empty()) return false;
  for (size_t at = cursor.from; at < text.size(); ++at) {
    const AddedToken* token = token_at(text, at);
    if (!token) continue;
    size_t begin = at, end = at + token->content.size();
    cursor.from = end;
    if (token->single_word && !stands_alone(text, begin, end)) {
      at = end - 1;  // skips a match inside a word
      continue;
    }
    if (token->strip_left)
      begin = std::max(begin - trailing_white_space(text.substr(0, begin)), cursor.done);
    if (token->strip_right) end += leading_white_space(text.substr(end));
    cursor.done = end;
    match = {begin, end, token->id};
    return true;
  }
  cursor.from = text.size();
  return false;
}

}  // namespace mtrain::data
