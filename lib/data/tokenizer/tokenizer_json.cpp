// Reads a Hugging Face tokenizer.json into a BpeTokenizer.
#include <array>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

using Json = TokenizerFile::Json;

// Returns the character that stands for each byte in byte-level vocabularies: the byte's own if it
// is printable, else one of U+0100 and above.
std::array<uint32_t, 256> byte_characters() {
  std::array<uint32_t, 256> characters{};
  uint32_t other = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    characters[b] = printable ? b : other++;
  }
  return characters;
}

class TokenizerReader {
 public:
  explicit TokenizerReader(const TokenizerFile& file)
      : file_(file), characters_(byte_characters()) {
    parts_.name = file.name;
    byte_of_.fill(-1);
    for (int b = 0; b < 256; ++b) byte_of_[characters_[size_t(b)]] = int16_t(b);
  }

  BpeTokenizer::Parts read(const std::string& eod, const Json& config) {
    file_.require(file_.root.is_object(), "the file is not a JSON object");
    const Json& model = TokenizerFile::member(file_.root, "model");
    check_model(model);
    auto normalizer = read_normalizer(file_);
    auto pre_tokenizer = read_pre_tokenizer(file_);
    auto decoder = read_decoder(file_, pre_tokenizer.byte_level);
    decodes_bytes_ = decoder.byte_level;
    model_.byte_level = pre_tokenizer.byte_level;
    unproved_ = !normalizer.keeps_cuts;
    read_vocabulary(model);
    read_symbols(model);
    read_merges(model);
    parts_.normalizer = std::move(normalizer.normalizer);
    parts_.pre_tokenizer = std::move(pre_tokenizer.pre_tokenizer);
    parts_.decoder = std::move(decoder.decoder);
    read_added_tokens();
    parts_.model = std::make_unique<BpeModel>(std::move(model_));
    parts_.cuts_at_words = pre_tokenizer.cuts_at_words && !unproved_;
    pick_eod(eod, config);
    pick_prefix(config);
    return std::move(parts_);
  }

 private:
  void check_model(const Json& model) const {
    file_.require(model.is_object(), "it has no \"model\"");
    const Json& type = TokenizerFile::member(model, "type");
    if (!type.is_null() && type != "BPE")
      file_.unsupported(
          fmt::format("model type {}", type.dump()),
          "mtrain supports BPE. If the folder also has a tokenizer.model of type BPE, python3 -c "
          "\"from transformers import AutoTokenizer as T; T.from_pretrained('DIR', "
          "from_slow=True).save_pretrained('DIR')\" writes it as BPE; else use a model with BPE");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = TokenizerFile::member(model, key);
      if (!value.is_null() && value != "")
        file_.unsupported(fmt::format("{} {}", key, value.dump()));
    }
    const Json& dropout = TokenizerFile::member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0)
      file_.unsupported(fmt::format("dropout {}", dropout.dump()));
  }

  int32_t id_of(const Json& value, const std::string& token) const {
    file_.require(value.is_number_integer() && value >= 0 && value < kMaxTokenId,
                  fmt::format("token \"{}\" has the id {}, expected 0 .. {}", token, value.dump(),
                              kMaxTokenId - 1));
    return value.get<int32_t>();
  }
  std::optional<int32_t> find(const std::string& token) const {
    const auto added = added_.find(token);
    if (added != added_.end()) return added->second;
    const auto known = ids_.find(token);
    return known == ids_.end() ? std::optional<int32_t>() : known->second;
  }
  void set_token(int32_t id, const std::string& token) {
    if (size_t(id) >= parts_.tokens.size()) parts_.tokens.resize(size_t(id) + 1);
    // A token with characters that do not stand for bytes, usually an added one, stands for its
    // text.
    parts_.tokens[size_t(id)] = decodes_bytes_ ? to_bytes(token).value_or(token) : token;
  }

  // Returns the bytes that the characters of `token` stand for; nothing if one of them does not
  // stand for a byte.
  std::optional<std::string> to_bytes(const std::string& token) const {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      const size_t n = utf8_length(token, at);
      const uint32_t c = decode_utf8(token, at, n);
      if (c >= byte_of_.size() || byte_of_[c] < 0) return std::nullopt;
      bytes += char(byte_of_[c]);
      at += n;
    }
    return bytes;
  }

  void read_vocabulary(const Json& model) {
    const Json& vocab = TokenizerFile::member(model, "vocab");
    file_.require(vocab.is_object() && !vocab.empty(), "model.vocab is missing or empty");
    ids_.reserve(vocab.size());
    parts_.tokens.reserve(vocab.size());
    for (const auto& [token, value] : vocab.items()) {
      const int32_t id = id_of(value, token);
      ids_.emplace(token, id);
      set_token(id, token);
    }
  }

  // Reads the initial symbols of words.
  void read_symbols(const Json& model) {
    const bool falls_back = file_.flag(model, "byte_fallback", false);
    const auto id_of_token = [&](const std::string& token) {
      const auto found = ids_.find(token);
      return found == ids_.end() ? -1 : found->second;
    };
    const auto id_of_byte = [&](uint8_t b) { return id_of_token(fmt::format("<0x{:02X}>", b)); };
    model_.byte_ids.fill(-1);
    for (uint32_t b = 0; b < 256; ++b) {
      if (!model_.byte_level) {
        if (falls_back) model_.byte_ids[b] = id_of_byte(uint8_t(b));
        continue;
      }
      std::string character;
      append_utf8(characters_[b], character);
      model_.byte_ids[b] = id_of_token(character);
      if (model_.byte_ids[b] >= 0 || !falls_back) continue;
      std::vector<int32_t> ids;
      for (char c : character) ids.push_back(id_of_byte(uint8_t(c)));
      if (std::ranges::find(ids, -1) == ids.end()) model_.byte_fallbacks[b] = std::move(ids);
    }
    if (!model_.byte_level) {
      model_.tokens.resize(parts_.tokens.size());
      for (const auto& [token, id] : ids_) {
        model_.tokens[size_t(id)] = token;
        if (!token.empty() && utf8_length(token, 0) == token.size())
          model_.characters.emplace(decode_utf8(token, 0, token.size()), id);
      }
    }
    model_.fuse_unknown = file_.flag(model, "fuse_unk", false);
    if (!TokenizerFile::member(model, "unk_token").is_null()) {
      model_.unknown = file_.text(model, "unk_token", "model");
      const int32_t id = id_of_token(model_.unknown);
      if (id >= 0) model_.unknown_id = id;
    }
    if (!file_.flag(model, "ignore_merges", false)) return;
    for (const auto& [token, id] : ids_) {
      const auto word = model_.byte_level ? to_bytes(token) : token;
      if (word) model_.whole_words.emplace(*word, id);
    }
  }

  void read_merges(const Json& model) {
    const Json& list = file_.list(model, "merges", "model");
    model_.merges.reserve(list.size());
    for (size_t rank = 0; rank < list.size(); ++rank) {
      const Json& entry = list[rank];
      std::string joined;
      std::string_view left, right;
      if (entry.is_string()) {
        const std::string_view pair = entry.get_ref<const std::string&>();
        if (pair.starts_with("#version")) continue;  // a line of merges.txt, as in the library
        const size_t space = pair.find(' ');
        file_.require(space != std::string::npos && pair.find(' ', space + 1) == std::string::npos,
                      fmt::format("merge {} is \"{}\", expected two tokens", rank, pair));
        left = pair.substr(0, space);
        right = pair.substr(space + 1);
      } else {
        file_.require(
            entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string(),
            fmt::format("merge {} is {}, expected two tokens", rank, entry.dump()));
        left = entry[0].get_ref<const std::string&>();
        right = entry[1].get_ref<const std::string&>();
      }
      const auto id = [&](std::string_view token) {
        const auto found = ids_.find(token);
        if (found == ids_.end())
          file_.require(false, fmt::format("merge {} (\"{}\" \"{}\") needs the token \"{}\", "
                                           "which the vocabulary lacks",
                                           rank, left, right, token));
        return found->second;
      };
      joined.append(left).append(right);
      model_.merges.push_back({id(left), id(right), id(joined)});
    }
  }

  void read_added_tokens() {
    const Json& list = TokenizerFile::member(file_.root, "added_tokens");
    if (list.is_null()) return;
    file_.require(list.is_array(), "added_tokens is not a list");
    Normalizer::Scratch scratch(parts_.normalizer);
    // The tokenizers library numbers added tokens by itself and ignores the ids in the file.
    int64_t next = int64_t(ids_.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Json& token = list[i];
      const std::string where = fmt::format("added_tokens[{}]", i);
      const std::string content = file_.text(token, "content", where);
      if (content.empty()) continue;
      const int32_t id = id_of(TokenizerFile::member(token, "id"), content);
      const auto known = find(content);
      const int64_t expected = known ? *known : next;
      file_.require(id == expected,
                    fmt::format("{} (\"{}\") has the id {}, but the tokenizers library gives it {}",
                                where, content, id, expected));
      next = std::max(next, int64_t(id) + 1);
      set_token(id, content);
      added_[content] = id;
      AddedToken added{.content = content,
                       .id = id,
                       .single_word = file_.flag(token, "single_word", false),
                       .strip_left = file_.flag(token, "lstrip", false),
                       .strip_right = file_.flag(token, "rstrip", false)};
      if (added.strip_left || added.strip_right ||
          content.find_first_of(" \t\r\n") != std::string::npos)
        unproved_ = true;
      if (file_.flag(token, "normalized", !file_.flag(token, "special", false))) {
        bool keeps_start = true;
        // The library decodes such a token to its normalized text, too.
        added.content = parts_.normalizer.apply(content, scratch, keeps_start);
        set_token(id, added.content);
        parts_.normalized.add(std::move(added));
      } else {
        parts_.raw.add(std::move(added));
      }
    }
  }

  // Returns the text of a token in tokenizer_config.json, which may be {"content": text}.
  static std::string config_token(const Json& config, const char* key) {
    const Json& value = TokenizerFile::member(config, key);
    const Json& content = value.is_object() ? TokenizerFile::member(value, "content") : value;
    return content.is_string() ? content.get<std::string>() : "";
  }

  void pick_eod(const std::string& wanted, const Json& config) {
    if (!wanted.empty()) {
      parts_.eod = find(wanted);
      if (!parts_.eod)
        throw UserError(fmt::format("{}: the vocabulary has no token \"{}\" to end documents with",
                                    parts_.name, wanted));
      return;
    }
    if ((parts_.eod = find(config_token(config, "eos_token")))) return;
    for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>",
                              "<|eot_id|>", "<eos>", "<｜end▁of▁sentence｜>"})
      if ((parts_.eod = find(usual))) return;
  }

  // tokenizer_config.json may turn the BOS token of the template on or off, as in transformers.
  void pick_prefix(const Json& config) {
    auto& prefix = parts_.text_prefix = read_text_prefix(file_);
    for (int32_t id : prefix)
      file_.require(size_t(id) < parts_.tokens.size(),
                    fmt::format("post_processor names the id {}, but the vocabulary has {}", id,
                                parts_.tokens.size()));
    const std::string bos = config_token(config, "bos_token");
    parts_.bos = find(bos);
    if (bos.empty() && prefix.size() == 1) parts_.bos = prefix[0];
    const Json& add = TokenizerFile::member(config, "add_bos_token");
    if (!add.is_boolean()) return;
    if (!add.get<bool>()) {
      if (prefix.size() == 1 && parts_.bos == prefix[0]) prefix.clear();
    } else if (prefix.empty()) {
      if (!parts_.bos)
        throw UserError(
            fmt::format("{}: tokenizer_config.json sets add_bos_token, but its bos_token "
                        "\"{}\" is not in the vocabulary",
                        parts_.name, bos));
      prefix.push_back(*parts_.bos);
    }
  }

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  const TokenizerFile& file_;
  BpeTokenizer::Parts parts_;
  BpeModel::Parts model_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::map<std::string, int32_t> added_;
  std::array<uint32_t, 256> characters_;
  std::array<int16_t, 512> byte_of_{};  // by code point: the byte for which it stands, or -1
  bool decodes_bytes_ = false;
  bool unproved_ = false;  // for Tokenizer::safe_cut: something may join words that a cut separates
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string_view json, const std::string& name,
                                              const std::string& eod, std::string_view config) {
  try {
    TokenizerFile file{name, parse_json(json, name)};
    const Json settings =
        config.empty() ? Json() : parse_json(config, "tokenizer_config.json beside " + name);
    return std::make_unique<BpeTokenizer>(TokenizerReader(file).read(eod, settings));
  } catch (const Json::exception& e) {
    throw UserError(fmt::format("{}: {}", name, e.what()));
  }
}

}  // namespace mtrain::data
