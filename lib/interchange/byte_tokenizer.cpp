#include "interchange/byte_tokenizer.h"

#include <string>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "storage/state.h"

namespace mtrain::interchange {

namespace {

constexpr const char* kEnd = "<|endoftext|>";

// Returns the code point that byte-level tokenizers write for a byte. It is the byte itself if that
// is visible in Latin-1. The other bytes get 256, 257, ... in order (Radford et al. 2019).
uint32_t code_point(int byte) {
  const auto visible = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  if (visible(byte)) return uint32_t(byte);
  uint32_t next = 256;
  for (int b = 0; b < byte; ++b) next += visible(b) ? 0 : 1;
  return next;
}

// All these code points have one or two bytes in UTF-8.
std::string utf8(uint32_t c) {
  if (c < 0x80) return {char(c)};
  return {char(0xc0 | (c >> 6)), char(0x80 | (c & 0x3f))};
}

}  // namespace

bool exceeds_bytes(const std::filesystem::path& checkpoint) {
  const auto state = checkpoint / "state.json";
  return std::filesystem::exists(state) && storage::TrainState::load(state).contains(kExceedsBytes);
}

void write_byte_tokenizer(const std::filesystem::path& folder) {
  using Json = nlohmann::ordered_json;
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[utf8(code_point(byte))] = byte;
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", false},
                        {"use_regex", false}};
  const Json end{{"id", kByteEnd},  {"content", kEnd}, {"single_word", false},
                 {"lstrip", false}, {"rstrip", false}, {"normalized", false},
                 {"special", true}};
  const Json tokenizer{{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array({end})},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level},
                       {"post_processor", nullptr},
                       {"decoder", byte_level},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", false},
                         {"vocab", std::move(vocab)},
                         {"merges", Json::array()}}}};
  const Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"eos_token", kEnd},
                    {"clean_up_tokenization_spaces", false}};
  write_file_atomic(folder / "tokenizer.json", tokenizer.dump(2) + "\n");
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace mtrain::interchange
