// Rotary positions of Hugging Face's config.json.
#include <algorithm>
#include <iterator>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/hf_config_file.h"

namespace mtrain::recipe {
namespace {

constexpr std::string_view kRotatedPart = "partial_rotary_factor";
constexpr const char* kRotaryPercent = "model.rotary_percent";
constexpr const char* kOriginalLength = "original_max_position_embeddings";

// The kinds of rotary positions, the keys that each of them needs, and those that it may have.
struct RopeType {
  std::string_view name, needed, allowed;
};
constexpr RopeType kRopeTypes[] = {
    {"default", "", ""},
    {"linear", "factor", ""},
    {"llama3", "factor low_freq_factor high_freq_factor original_max_position_embeddings", ""},
    {"yarn", "factor",
     "original_max_position_embeddings attention_factor beta_fast beta_slow mscale mscale_all_dim "
     "truncate"},
    {"longrope", "short_factor long_factor",
     "original_max_position_embeddings attention_factor factor"}};
constexpr const char* kBuiltRopes = "default, linear, llama3, yarn and longrope positions are";

bool reads(const RopeType& type, const std::string& key) {
  const auto needed = split(type.needed, ' '), allowed = split(type.allowed, ' ');
  return std::ranges::count(needed, key) + std::ranges::count(allowed, key) > 0;
}

class RopeReader {
 public:
  RopeReader(HfConfigFile& file, HfRope kind, bool partial)
      : file_(file), kind_(kind), partial_(partial) {}

  // Both spellings: rope_scaling beside rope_theta, and rope_parameters, which holds rope_theta.
  void read() {
    const Node* rope = file_.given("rope_parameters");
    if (!rope) rope = file_.given("rope_scaling");
    if (!rope) return set_type("none");
    if (rope->kind != Node::Kind::map)
      return file_.refuse(fmt::format("{}: its rotary positions are {}, not an object",
                                      file_.path(), describe(*rope)),
                          "download the folder again");
    const Node* named = given(*rope, "rope_type");
    if (!named) named = given(*rope, "type");
    std::string word = named ? named->text : "default";
    const bool phi3 = kind_ == HfRope::phi3;
    if (phi3 && (word == "su" || word == "yarn")) word = "longrope";
    const auto* type = std::ranges::find(kRopeTypes, word, &RopeType::name);
    const bool of_phi3 = word == "default" || word == "longrope";
    if (type == std::end(kRopeTypes) || (phi3 && !of_phi3))
      return file_.refuse(
          fmt::format("{}: rotary positions of type {} are not built{}", file_.path(), word,
                      phi3 ? " for such models" : ""),
          fmt::format("{}; such a model cannot be used yet",
                      phi3 ? "Phi-3 has default and longrope positions" : kBuiltRopes));
    for (const std::string& key : split(type->needed, ' '))
      if (!key.empty() && !given(*rope, key))
        file_.refuse(
            fmt::format("{}: its rotary positions of type {} lack {}", file_.path(), word, key),
            "download the folder again");
    set_type(word == "default" ? "none" : word);
    for (size_t i = 0; i < rope->keys.size(); ++i)
      read_key(rope->keys[i].name, rope->items[i], *type);
    read_original_length(*rope, *type);
    if (word == "longrope") check_longrope_factor(*rope);
    if (const Node* theta = HfConfigFile::find(*rope, "rope_theta"))
      file_.set("model.rotary_base", *theta, "rope_theta", false, true);
  }

 private:
  static const Node* given(const Node& map, std::string_view key) {
    return HfConfigFile::given(map, key);
  }

  void set_type(std::string_view type) {
    file_.set("model.rope_scaling.type", file_.scalar(type), "rope_type", false);
  }

  void read_key(const std::string& key, const Node& value, const RopeType& type) {
    if (key == "rope_theta" || key == "rope_type" || key == "type" || value.unset()) return;
    if (key == kRotatedPart && partial_) return file_.set(kRotaryPercent, value, key, false, true);
    if (key == kRotatedPart) return file_.check_only(key, "1", value);
    if (type.name == "default") return;  // transformers reads nothing else of them
    if (key == kOriginalLength && reads(type, key)) return;
    if (key == "factor" && type.name == "longrope") return;
    if (reads(type, key)) return file_.set("model.rope_scaling." + key, value, key, false);
    file_.refuse(
        fmt::format("{}: the key {} of its rotary positions is not understood", file_.path(), key),
        fmt::format("positions of type {} have no such key in transformers", type.name));
  }

  // The length may stand beside the rotary positions, too, where transformers 5 prefers it and
  // transformers 4 does not look for all types. Left out, it is the longest sequence; but Phi-3
  // always has one beside them.
  void read_original_length(const Node& rope, const RopeType& type) {
    if (!reads(type, kOriginalLength)) return;
    const Node *inner = given(rope, kOriginalLength), *outer = file_.given(kOriginalLength);
    const Node of_phi3 = file_.scalar("4096");
    if (!outer && kind_ == HfRope::phi3) outer = &of_phi3;
    if (inner && outer && inner->text != outer->text)
      return file_.refuse(
          fmt::format("{}: {} is {} among the rotary positions, and {} beside them", file_.path(),
                      kOriginalLength, inner->text, outer->text),
          "versions of transformers differ in which they take: remove one of the two");
    if (!inner) inner = outer;
    if (!inner) inner = file_.field("model.max_position_embeddings");
    if (inner)
      file_.set(fmt::format("model.rope_scaling.{}", kOriginalLength), *inner, kOriginalLength,
                false);
  }

  // The attention factor follows from the lengths. transformers 5 lets a factor win over their
  // quotient, and transformers 4 the quotient over the factor.
  void check_longrope_factor(const Node& rope) {
    const Node* factor = given(rope, "factor");
    if (!factor || given(rope, "attention_factor")) return;
    double value = 0;
    ValueError ignored;
    const double longest = file_.field_number("model.max_position_embeddings");
    const double original =
        file_.field_number("model.rope_scaling.original_max_position_embeddings");
    if (read_value(*factor, {}, value, ignored) && longest == value * original) return;
    file_.refuse(fmt::format("{}: the factor {} of its rotary positions is not {} / {}",
                             file_.path(), factor->text, longest, original),
                 "versions of transformers differ in which they take: give an attention_factor");
  }

  HfConfigFile& file_;
  HfRope kind_;
  bool partial_;
};

}  // namespace

void read_hf_rope(HfConfigFile& file, HfRope kind, bool partial) {
  RopeReader(file, kind, partial).read();
}

}  // namespace mtrain::recipe
