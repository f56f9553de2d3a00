#include "data/tokenizer/tokenizer_file.h"

#include "base/error.h"

namespace mtrain::data {

void TokenizerFile::require(bool ok, const std::string& what) const {
  if (!ok) throw UserError(fmt::format("{}: {}", name, what));
}

void TokenizerFile::unsupported(const std::string& what, const std::string& hint) const {
  throw UserError(fmt::format("{}: {} is not supported", name, what), hint);
}

const TokenizerFile::Json& TokenizerFile::member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

bool TokenizerFile::flag(const Json& object, const char* key, bool otherwise) const {
  const Json& value = member(object, key);
  if (value.is_null()) return otherwise;
  require(value.is_boolean(), fmt::format("{} must be true or false", key));
  return value.get<bool>();
}

std::string TokenizerFile::text(const Json& object, const char* key,
                                const std::string& where) const {
  const Json& value = member(object, key);
  require(value.is_string(), fmt::format("{} has no text \"{}\"", where, key));
  return value.get<std::string>();
}

int64_t TokenizerFile::count(const Json& object, const char* key, const std::string& where) const {
  const Json& value = member(object, key);
  require(value.is_number_integer() && value >= 0 && value < kMaxTokenId,
          fmt::format("{}.{} is {}, expected 0 .. {}", where, key, value.dump(), kMaxTokenId - 1));
  return value.get<int64_t>();
}

const TokenizerFile::Json& TokenizerFile::list(const Json& object, const char* key,
                                               const std::string& where) const {
  const Json& value = member(object, key);
  require(value.is_array(), fmt::format("{}.{} is not a list", where, key));
  return value;
}

TokenizerFile::Pattern TokenizerFile::pattern(const Json& object, const std::string& where) const {
  const Json& node = member(object, "pattern");
  const Json& regex = member(node, "Regex");
  Pattern pattern;
  if (regex.is_string()) {
    pattern.source = regex.get<std::string>();
    pattern.regex = std::make_unique<Regex>(pattern.source, place(where));
  } else {
    pattern.source = text(node, "String", where + ".pattern");
    require(!pattern.source.empty(), where + ".pattern is empty");
  }
  return pattern;
}

}  // namespace mtrain::data
