// Reads a Hugging Face tokenizer.json into a BpeTokenizer. A feature that the BpeTokenizer lacks is
// an error that names it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

using Json = nlohmann::json;

// Far above any vocabulary, so that a wild id cannot fill the memory.
constexpr int64_t kMaxId = int64_t(1) << 22;
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class Reader {
 public:
  Reader(const Json& root, std::string name) : root_(root) { parts_.name = std::move(name); }

  BpeTokenizer::Parts read(const std::string& eod) {
    require(root_.is_object(), "the file is not a JSON object");
    read_vocabulary();
    read_merges();
    read_normalizer(member(root_, "normalizer"), "normalizer");
    read_pre_tokenizer(member(root_, "pre_tokenizer"), "pre_tokenizer");
    if (!byte_level_)
      unsupported("a pre_tokenizer without ByteLevel", "only byte-level BPE is supported");
    read_added_tokens();
    pick_eod(eod);
    parts_.cuts_at_words = known_pattern_ && !unproved_;
    return std::move(parts_);
  }

 private:
  void require(bool ok, const std::string& what) const {
    if (!ok) throw UserError(fmt::format("{}: {}", parts_.name, what));
  }
  [[noreturn]] void unsupported(const std::string& what, const std::string& hint = "") const {
    throw UserError(fmt::format("{}: {} is not supported", parts_.name, what), hint);
  }
  static const Json& member(const Json& object, const char* key) {
    static const Json null;
    if (!object.is_object()) return null;
    const auto it = object.find(key);
    return it == object.end() ? null : *it;
  }
  bool flag(const Json& object, const char* key, bool otherwise) const {
    const Json& value = member(object, key);
    if (value.is_null()) return otherwise;
    require(value.is_boolean(), fmt::format("{} must be true or false", key));
    return value.get<bool>();
  }
  std::string text(const Json& object, const char* key, const std::string& where) const {
    const Json& value = member(object, key);
    require(value.is_string(), fmt::format("{} has no text \"{}\"", where, key));
    return value.get<std::string>();
  }

  // Returns the character by which byte-level vocabularies write each byte: the byte's own if it is
  // printable, else one of those from U+0100 on.
  static std::array<uint32_t, 256> byte_characters() {
    std::array<uint32_t, 256> characters{};
    uint32_t other = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      characters[b] = printable ? b : other++;
    }
    return characters;
  }

  int32_t id_of(const Json& value, const std::string& token) const {
    require(value.is_number_integer() && value >= 0 && value < kMaxId,
            fmt::format("token \"{}\" has the id {}, expected 0 .. {}", token, value.dump(),
                        kMaxId - 1));
    return value.get<int32_t>();
  }
  void set_bytes(int32_t id, std::string bytes) {
    if (size_t(id) >= parts_.bytes.size()) parts_.bytes.resize(size_t(id) + 1);
    parts_.bytes[size_t(id)] = std::move(bytes);
  }

  void read_vocabulary() {
    const Json& model = member(root_, "model");
    require(model.is_object(), "it has no \"model\"");
    const Json& type = member(model, "type");
    if (!type.is_null() && type != "BPE") unsupported(fmt::format("model type {}", type.dump()));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = member(model, key);
      if (!value.is_null() && value != "") unsupported(fmt::format("{} {}", key, value.dump()));
    }
    const Json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0)
      unsupported(fmt::format("dropout {}", dropout.dump()));
    if (flag(model, "byte_fallback", false)) unsupported("byte_fallback");

    const Json& vocab = member(model, "vocab");
    require(vocab.is_object() && !vocab.empty(), "model.vocab is missing or empty");
    std::unordered_map<uint32_t, uint8_t> byte_of;
    const auto characters = byte_characters();
    for (uint32_t b = 0; b < 256; ++b) byte_of[characters[b]] = uint8_t(b);
    for (const auto& [token, value] : vocab.items()) {
      const int32_t id = id_of(value, token);
      ids_.emplace(token, id);
      // A token with other characters, usually a special token, stands for its own text.
      set_bytes(id, to_bytes(token, byte_of).value_or(token));
    }
    std::string character;
    for (uint32_t b = 0; b < 256; ++b) {
      character.clear();
      append_utf8(characters[b], character);
      const auto found = ids_.find(character);
      if (found == ids_.end())
        throw UserError(
            fmt::format("{}: the vocabulary has no token for the byte 0x{:02X}", parts_.name, b),
            "only byte-level BPE with all 256 bytes is supported");
      byte_ids_[b] = found->second;
    }
  }

  // Returns the bytes for which the characters of `token` stand; nothing if one stands for no byte.
  static std::optional<std::string> to_bytes(const std::string& token,
                                             const std::unordered_map<uint32_t, uint8_t>& byte_of) {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      // The characters that stand for bytes are below U+0800, so they have one or two bytes.
      const uint8_t lead = uint8_t(token[at]);
      const size_t n = utf8_length(token, at);
      if (n != 1 && n != 2) return std::nullopt;
      const uint32_t c =
          n == 1 ? lead : uint32_t(lead & 0x1F) << 6 | (uint8_t(token[at + 1]) & 0x3F);
      const auto found = byte_of.find(c);
      if (found == byte_of.end()) return std::nullopt;
      bytes += char(found->second);
      at += n;
    }
    return bytes;
  }

  void read_merges() {
    const Json& model = member(root_, "model");
    const Json& list = member(model, "merges");
    require(list.is_array(), "model.merges is not a list");
    std::vector<BpeModel::Merge> merges;
    merges.reserve(list.size());
    for (size_t rank = 0; rank < list.size(); ++rank) {
      const Json& entry = list[rank];
      std::string left, right;
      if (entry.is_string()) {
        const std::string pair = entry.get<std::string>();
        const size_t space = pair.find(' ');
        require(space != std::string::npos && pair.find(' ', space + 1) == std::string::npos,
                fmt::format("merge {} is \"{}\", expected two tokens", rank, pair));
        left = pair.substr(0, space);
        right = pair.substr(space + 1);
      } else {
        require(
            entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string(),
            fmt::format("merge {} is {}, expected two tokens", rank, entry.dump()));
        left = entry[0].get<std::string>();
        right = entry[1].get<std::string>();
      }
      const auto id = [&](const std::string& token) {
        const auto found = ids_.find(token);
        require(found != ids_.end(),
                fmt::format(
                    "merge {} (\"{}\" \"{}\") needs the token \"{}\", which the vocabulary lacks",
                    rank, left, right, token));
        return found->second;
      };
      merges.push_back({id(left), id(right), id(left + right)});
    }
    std::unordered_map<std::string, int32_t> whole;
    if (flag(model, "ignore_merges", false))
      for (const auto& [token, id] : ids_) whole.emplace(parts_.bytes[size_t(id)], id);
    parts_.model = std::make_unique<BpeModel>(merges, byte_ids_, std::move(whole));
  }

  void read_normalizer(const Json& node, const std::string& where) {
    if (node.is_null()) return;
    const std::string type = text(node, "type", where);
    if (type == "NFC") {
      parts_.nfc = true;
    } else if (type == "Sequence") {
      const Json& list = member(node, "normalizers");
      require(list.is_array(), where + ".normalizers is not a list");
      for (size_t i = 0; i < list.size(); ++i)
        read_normalizer(list[i], fmt::format("{}.normalizers[{}]", where, i));
    } else {
      unsupported(fmt::format("{} {}", where, type), "only NFC is");
    }
  }

  void read_pre_tokenizer(const Json& node, const std::string& where) {
    if (node.is_null()) return;
    if (byte_level_) unsupported(where + " after ByteLevel");
    const std::string type = text(node, "type", where);
    const std::string place = parts_.name + ": " + where;
    if (type == "Sequence") {
      const Json& list = member(node, "pretokenizers");
      require(list.is_array(), where + ".pretokenizers is not a list");
      for (size_t i = 0; i < list.size(); ++i)
        read_pre_tokenizer(list[i], fmt::format("{}.pretokenizers[{}]", where, i));
      return;
    }
    PreTokenizer::Stage stage;
    if (type == "ByteLevel") {
      byte_level_ = true;
      stage.prefix_space = flag(node, "add_prefix_space", true);
      if (stage.prefix_space) unproved_ = true;
      if (flag(node, "use_regex", true)) {
        stage.pattern = std::make_unique<Regex>(std::string(kGpt2), place);
        known_pattern_ = true;
      }
    } else if (type == "Digits") {
      stage.pattern = std::make_unique<Regex>("\\p{N}", place);
      if (!flag(node, "individual_digits", false)) stage.behavior = SplitBehavior::contiguous;
    } else if (type == "Split") {
      read_split(node, where, stage);
    } else {
      unsupported(fmt::format("{} {}", where, type), "ByteLevel, Split, Digits and Sequence are");
    }
    parts_.pre_tokenizer.add(std::move(stage));
  }

  void read_split(const Json& node, const std::string& where, PreTokenizer::Stage& stage) {
    const std::string place = parts_.name + ": " + where;
    const Json& pattern = member(node, "pattern");
    const Json& regex = member(pattern, "Regex");
    if (regex.is_string()) {
      const std::string source = regex.get<std::string>();
      stage.pattern = std::make_unique<Regex>(source, place);
      (source == kGpt2 || source == kLlama3 || source == kQwen2 ? known_pattern_ : unproved_) =
          true;
    } else {
      const std::string literal = text(pattern, "String", where + ".pattern");
      stage.pattern = std::make_unique<Regex>(Regex::literal(literal, place));
      unproved_ = true;
    }
    const std::string behavior = text(node, "behavior", where);
    static const std::map<std::string, SplitBehavior> behaviors = {
        {"Isolated", SplitBehavior::isolated},
        {"Removed", SplitBehavior::removed},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const auto found = behaviors.find(behavior);
    if (found == behaviors.end()) unsupported(fmt::format("{} behavior {}", where, behavior));
    stage.behavior = found->second;
    stage.invert = flag(node, "invert", false);
    if (stage.behavior != SplitBehavior::isolated) unproved_ = true;
  }

  void read_added_tokens() {
    const Json& list = member(root_, "added_tokens");
    if (list.is_null()) return;
    require(list.is_array(), "added_tokens is not a list");
    for (size_t i = 0; i < list.size(); ++i) {
      const Json& token = list[i];
      const std::string where = fmt::format("added_tokens[{}]", i);
      const std::string content = text(token, "content", where);
      if (content.empty()) continue;
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (flag(token, key, false))
          unsupported(fmt::format("{} (\"{}\") with {}", where, content, key));
      const int32_t id = id_of(member(token, "id"), content);
      set_bytes(id, content);
      added_[content] = id;
      if (content.find_first_of(" \t\r\n") != std::string::npos) unproved_ = true;
      if (flag(token, "normalized", !flag(token, "special", false))) {
        std::string storage;
        parts_.normalized.add(parts_.nfc ? std::string(to_nfc(content, storage)) : content, id);
      } else {
        parts_.raw.add(content, id);
      }
    }
  }

  void pick_eod(const std::string& wanted) {
    const auto find = [&](const std::string& token) {
      const auto added = added_.find(token);
      if (added != added_.end()) parts_.eod = added->second;
      const auto in_vocab = ids_.find(token);
      if (!parts_.eod && in_vocab != ids_.end()) parts_.eod = in_vocab->second;
      return parts_.eod.has_value();
    };
    if (!wanted.empty()) {
      if (!find(wanted))
        throw UserError(fmt::format("{}: the vocabulary has no token \"{}\" to end documents with",
                                    parts_.name, wanted));
      return;
    }
    for (const char* usual :
         {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<|eot_id|>"})
      if (find(usual)) return;
  }

  const Json& root_;
  BpeTokenizer::Parts parts_;
  std::unordered_map<std::string, int32_t> ids_;
  std::map<std::string, int32_t> added_;
  std::array<int32_t, 256> byte_ids_{};
  bool byte_level_ = false;
  // For Tokenizer::safe_cut: a stage has one of the patterns above; and something else in the file
  // may join the words that it cuts.
  bool known_pattern_ = false, unproved_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string_view json, const std::string& name,
                                              const std::string& eod) {
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::exception& e) {
    throw UserError(fmt::format("{} is not valid JSON: {}", name, e.what()));
  }
  try {
    return std::make_unique<BpeTokenizer>(Reader(root, name).read(eod));
  } catch (const Json::exception& e) {
    throw UserError(fmt::format("{}: {}", name, e.what()));
  }
}

}  // namespace mtrain::data
