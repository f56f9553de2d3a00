#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {
namespace {

constexpr int32_t kEndOfDocument = 256;

class ByteDecoder final : public TokenDecoder {
 public:
  void push(int32_t id, std::string& out) override {
    if (id < 0 || id > kEndOfDocument)
      throw UserError(fmt::format("token id {} is outside the byte vocabulary of 257", id));
    if (id != kEndOfDocument) out += char(id);
  }
  void finish(std::string&) override {}
};

class ByteTokenizer final : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    out.insert(out.end(), bytes, bytes + text.size());
  }
  std::unique_ptr<TokenDecoder> start_decoding() const override {
    return std::make_unique<ByteDecoder>();
  }
  int64_t vocab_size() const override { return kEndOfDocument + 1; }
  std::optional<int32_t> eod() const override { return kEndOfDocument; }
  std::string name() const override { return "byte"; }
  size_t safe_cut(std::string_view text) const override {
    if (text.size() < 2) return 0;
    const size_t newline = text.rfind('\n', text.size() - 2);
    return newline == std::string_view::npos ? 0 : newline + 1;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace mtrain::data
