#include <fmt/core.h>

#include "data/tokenizer/tokenizer_file.h"

namespace mtrain::data {
namespace {

using Json = TokenizerFile::Json;

int32_t id_of(const TokenizerFile& file, const Json& value, const std::string& where) {
  file.require(
      value.is_number_integer() && value >= 0 && value < kMaxTokenId,
      fmt::format("{} has the id {}, expected 0 .. {}", where, value.dump(), kMaxTokenId - 1));
  return value.get<int32_t>();
}

// Appends the ids that a TemplateProcessing puts before the text of its "single" template.
void add_template(const TokenizerFile& file, const Json& node, const std::string& where,
                  std::vector<int32_t>& prefix) {
  for (const Json& piece : file.list(node, "single", where)) {
    if (!TokenizerFile::member(piece, "Sequence").is_null()) return;
    const std::string token =
        file.text(TokenizerFile::member(piece, "SpecialToken"), "id", where + ".single");
    const Json& known =
        TokenizerFile::member(TokenizerFile::member(node, "special_tokens"), token.c_str());
    const std::string at = fmt::format("{}.special_tokens.{}", where, token);
    for (const Json& id : file.list(known, "ids", at)) prefix.push_back(id_of(file, id, at));
  }
  file.require(false, where + ".single has no text");
}

// A later processor of a sequence puts its tokens around the result of the earlier ones.
void add_processor(const TokenizerFile& file, const Json& node, const std::string& where,
                   std::vector<int32_t>& prefix) {
  const std::string type = file.text(node, "type", where);
  if (type == "ByteLevel") return;
  std::vector<int32_t> before;
  if (type == "Sequence") {
    const Json& list = file.list(node, "processors", where);
    for (size_t i = 0; i < list.size(); ++i)
      add_processor(file, list[i], fmt::format("{}.processors[{}]", where, i), before);
  } else if (type == "TemplateProcessing") {
    add_template(file, node, where, before);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const Json& cls = file.list(node, "cls", where);
    file.require(cls.size() == 2, where + ".cls is not a token and its id");
    before.push_back(id_of(file, cls[1], where + ".cls"));
  } else {
    file.unsupported(fmt::format("{} {}", where, type));
  }
  prefix.insert(prefix.begin(), before.begin(), before.end());
}

}  // namespace

std::vector<int32_t> read_text_prefix(const TokenizerFile& file) {
  std::vector<int32_t> prefix;
  const Json& node = TokenizerFile::member(file.root, "post_processor");
  if (!node.is_null()) add_processor(file, node, "post_processor", prefix);
  return prefix;
}

}  // namespace mtrain::data
