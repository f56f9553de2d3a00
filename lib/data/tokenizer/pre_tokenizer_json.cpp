#include <map>

#include "data/tokenizer/tokenizer_file.h"
#include "data/tokenizer/unicode.h"

namespace mtrain::data {
namespace {

using Json = TokenizerFile::Json;

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(const TokenizerFile& file) : file_(file) {}

  PreTokenizerPart read() {
    add(TokenizerFile::member(file_.root, "pre_tokenizer"), "pre_tokenizer");
    part_.cuts_at_words = known_pattern_ && !unproved_;
    return std::move(part_);
  }

 private:
  void add(const Json& node, const std::string& where) {
    if (node.is_null()) return;
    if (part_.byte_level) file_.unsupported(where + " after ByteLevel");
    const std::string type = file_.text(node, "type", where);
    if (type == "Sequence") {
      const Json& list = file_.list(node, "pretokenizers", where);
      for (size_t i = 0; i < list.size(); ++i)
        add(list[i], fmt::format("{}.pretokenizers[{}]", where, i));
      return;
    }
    PreTokenizer::Stage stage;
    if (type == "ByteLevel") {
      part_.byte_level = true;
      if (file_.flag(node, "add_prefix_space", true)) {
        stage.prefix = " ";
        unproved_ = true;
      }
      if (file_.flag(node, "use_regex", true)) {
        stage.pattern = std::make_unique<Regex>(std::string(kGpt2), file_.place(where));
        known_pattern_ = true;
      }
    } else if (type == "Digits") {
      stage.pattern = std::make_unique<Regex>(Regex::native(kNumbers));
      stage.stand_ins = false;
      if (!file_.flag(node, "individual_digits", false)) stage.behavior = SplitBehavior::contiguous;
    } else if (type == "Split") {
      read_split(node, where, stage);
    } else if (type == "Punctuation") {
      stage.pattern = std::make_unique<Regex>(Regex::native(kPunctuation));
      stage.stand_ins = false;
      if (!TokenizerFile::member(node, "behavior").is_null())
        stage.behavior = behavior(node, where);
      unproved_ = true;
    } else if (type == "Whitespace") {
      const std::string word = kWordCharacters;
      stage.pattern = std::make_unique<Regex>(
          Regex::native(fmt::format("{0}+|(?:(?!{0})\\P{{White_Space}})+", word)));
      stage.invert = true;
      stage.behavior = SplitBehavior::removed;
      unproved_ = true;
    } else if (type == "WhitespaceSplit") {
      stage.pattern = std::make_unique<Regex>(Regex::native("\\p{White_Space}"));
      stage.behavior = SplitBehavior::removed;
      unproved_ = true;
    } else if (type == "Metaspace") {
      read_metaspace(node, where, stage);
    } else {
      file_.unsupported(fmt::format("{} {}", where, type),
                        "ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                        "Metaspace and Sequence are");
    }
    part_.pre_tokenizer.add(std::move(stage));
  }

  void read_split(const Json& node, const std::string& where, PreTokenizer::Stage& stage) {
    auto pattern = file_.pattern(node, where);
    const auto& source = pattern.source;
    const bool known = pattern.regex && (source == kGpt2 || source == kLlama3 || source == kQwen2);
    (known ? known_pattern_ : unproved_) = true;
    stage.pattern = std::move(pattern.regex);
    if (!stage.pattern) stage.literal = source;
    stage.behavior = behavior(node, where);
    stage.invert = file_.flag(node, "invert", false);
    if (stage.behavior != SplitBehavior::isolated) unproved_ = true;
  }

  SplitBehavior behavior(const Json& node, const std::string& where) const {
    static const std::map<std::string, SplitBehavior> behaviors = {
        {"Isolated", SplitBehavior::isolated},
        {"Removed", SplitBehavior::removed},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const std::string name = file_.text(node, "behavior", where);
    const auto found = behaviors.find(name);
    if (found == behaviors.end()) file_.unsupported(fmt::format("{} behavior {}", where, name));
    return found->second;
  }

  void read_metaspace(const Json& node, const std::string& where, PreTokenizer::Stage& stage) {
    stage.space = stage.prefix = file_.text(node, "replacement", where);
    file_.require(!stage.space.empty(), where + ".replacement is empty");
    // Older files have add_prefix_space instead of prepend_scheme "always".
    std::string scheme = file_.flag(node, "add_prefix_space", true) ? "always" : "never";
    if (!TokenizerFile::member(node, "prepend_scheme").is_null())
      scheme = file_.text(node, "prepend_scheme", where);
    static const std::map<std::string, PrependScheme> schemes = {{"always", PrependScheme::always},
                                                                 {"first", PrependScheme::first},
                                                                 {"never", PrependScheme::never}};
    const auto found = schemes.find(scheme);
    if (found == schemes.end())
      file_.unsupported(fmt::format("{} prepend_scheme {}", where, scheme));
    stage.scheme = found->second;
    if (file_.flag(node, "split", true)) {
      stage.literal = stage.space;
      stage.behavior = SplitBehavior::merged_with_next;
    }
    unproved_ = true;
  }

  const TokenizerFile& file_;
  PreTokenizerPart part_;
  // For Tokenizer::safe_cut: whether a stage has one of the patterns above; whether something else
  // may join the words that it cuts.
  bool known_pattern_ = false, unproved_ = false;
};

}  // namespace

PreTokenizerPart read_pre_tokenizer(const TokenizerFile& file) {
  return PreTokenizerReader(file).read();
}

}  // namespace mtrain::data
