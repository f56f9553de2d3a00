// Any text is refused as a tokenizer.json with a UserError, or gives a tokenizer whose ids are in
// its vocabulary. Fuzzing never finds a vocabulary of all 256 bytes by chance, so the fuzzed part
// is also put into complete files: one of bytes, one of characters.
#include <string>

#include "base/error.h"
#include "data/tokenizer/decode_stream.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"

using namespace mtrain;

namespace {

const std::string& byte_vocabulary() {
  static const std::string vocabulary = [] {
    std::string text;
    uint32_t other = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      text += b ? ",\"" : "\"";
      if (b == '"' || b == '\\') text += '\\';
      data::append_utf8(printable ? b : other++, text);
      text += "\":" + std::to_string(b);
    }
    return text + ",\"th\":256,\"the\":257,\"Ġthe\":258";
  }();
  return vocabulary;
}

void attempt(const std::string& json, std::string_view text) {
  try {
    const auto tokenizer = data::make_bpe_tokenizer(json, "fuzz.json");
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    for (int32_t id : ids) MT_CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
    const std::string whole = tokenizer->decode(ids);
    data::DecodeStream stream(*tokenizer);
    std::string streamed;
    for (int32_t id : ids) streamed += stream.push(id);
    MT_CHECK(streamed + stream.finish() == whole, "streamed text");
    for (int32_t id : tokenizer->text_prefix())
      MT_CHECK(id >= 0 && id < tokenizer->vocab_size(), "prefix {}", id);
    MT_CHECK(tokenizer->safe_cut(text) <= text.size(), "cut");
  } catch (const UserError&) {
  } catch (const RunError&) {  // a pattern that would backtrack for ever
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  attempt(std::string(text), text);
  // What follows "model" is fuzzed: normalizer, pre_tokenizer, added_tokens, decoder,
  // post_processor.
  attempt(
      "{\"model\":{\"vocab\":{\"<unk>\":0,\"<0x0A>\":1,\"<0xC3>\":2,\"<0xA9>\":3,\"▁\":4,\"e\":5,"
      "\"t\":6,\" \":7,\"▁t\":8,\"▁te\":9,\"te\":10},\"unk_token\":\"<unk>\",\"fuse_unk\":true,"
      "\"byte_fallback\":true,\"merges\":[\"▁ t\",\"▁t e\",\"t e\",\"▁ te\"]}," +
          std::string(text) + "}",
      text);
  attempt("{\"model\":{\"vocab\":{" + byte_vocabulary() +
              "},\"merges\":[\"t h\",[\"th\",\"e\"],\"Ġ the\"]}," + std::string(text) + "}",
          text);
  return 0;
}
