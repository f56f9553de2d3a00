// Reads rotary positions from Hugging Face's config.json.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/strings.h"
#include "interchange/config/file.h"

namespace mtrain::interchange {
namespace {

constexpr std::string_view kRotatedPart = "partial_rotary_factor";
constexpr const char* kRotaryPercent = "model.rotary_percent";
constexpr const char* kOriginalLength = "original_max_position_embeddings";

// A type of rotary positions, the keys that it requires, and further keys that it may have.
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
  RopeReader(ConfigFile& file, RopeRule kind, bool partial)
      : file_(file), kind_(kind), partial_(partial) {}

  // Reads rope_scaling beside rope_theta, or rope_parameters, which contains rope_theta.
  void read() {
    const Node *rope = file_.given("rope_parameters"), *scaling = file_.given("rope_scaling");
    if (kind_ == RopeRule::of_layer_types && rope) {
      if (scaling)
        return file_.refuse(
            fmt::format("{}: there are rope_parameters and rope_scaling", file_.path()),
            "versions of transformers differ in which they take: remove one");
      if (!(rope = read_types(*rope))) return;
    } else if (rope && scaling && !check_same(*rope, *scaling)) {
      return;
    }
    if (!rope) rope = scaling;
    if (!rope) return set_type("none");
    if (is_object(*rope)) read(*rope);
  }

 private:
  static const Node* given(const Node& map, std::string_view key) {
    return ConfigFile::given(map, key);
  }

  // If a file has both, transformers uses rope_scaling, and looks for keys beside rope_parameters,
  // not inside. Therefore both must agree. Returns false after an error.
  bool check_same(const Node& rope, const Node& scaling) {
    if (!is_object(rope) || !is_object(scaling)) return false;
    if (scaling.keys.empty()) return true;  // an empty object counts as absent
    for (const Node* map : {&rope, &scaling})
      for (const Node::Key& key : map->keys) {
        const bool type = key.name == "type" || key.name == "rope_type";
        if (type ? type_of(rope) == type_of(scaling)
                 : same(inside_or_beside(rope, key.name), inside_or_beside(scaling, key.name)))
          continue;
        file_.refuse(
            fmt::format("{}: there are rope_parameters and rope_scaling, which differ in {}",
                        file_.path(), key.name),
            "versions of transformers differ in which they take: remove one");
        return false;
      }
    return true;
  }

  static std::string type_of(const Node& rope) {
    const Node* named = given(rope, "rope_type");
    if (!named) named = given(rope, "type");
    return named ? named->text : "default";
  }

  const Node* inside_or_beside(const Node& rope, const std::string& key) {
    const Node* inside = given(rope, key);
    const bool may_stand_beside =
        key == "rope_theta" || key == kRotatedPart || key == kOriginalLength;
    return inside || !may_stand_beside ? inside : file_.given(key);
  }

  static bool same(const Node* a, const Node* b) {
    if (!a || !b) return a == b;
    if (a->kind != b->kind || a->quoted != b->quoted || a->items.size() != b->items.size())
      return false;
    for (size_t i = 0; i < a->items.size(); ++i)
      if (!same(&a->items[i], &b->items[i])) return false;
    double x = 0, y = 0;
    recipe::ValueError ignored;
    const bool numbers = read_value(*a, {}, x, ignored) && read_value(*b, {}, y, ignored);
    return numbers ? x == y : a->text == b->text;
  }

  // For Gemma 3, transformers 5 ignores the older key `type`, and transformers 4 requires
  // rope_type. Returns false after an error.
  bool check_spelling(const Node& rope) {
    if (kind_ != RopeRule::of_layer_types || !given(rope, "type") || given(rope, "rope_type"))
      return true;
    file_.refuse(
        fmt::format("{}: its rotary positions have a type, and no rope_type", file_.path()),
        "versions of transformers differ in what they take it for: rename the key type "
        "to rope_type");
    return false;
  }

  bool is_object(const Node& rope) {
    if (rope.kind == Node::Kind::map) return true;
    file_.refuse(
        fmt::format("{}: its rotary positions are {}, not an object", file_.path(), describe(rope)),
        "download the folder again");
    return false;
  }

  // Reads positions that differ between types of layers. Sets the base of the layers with a window,
  // and returns the positions of the other layers; null after an error.
  const Node* read_types(const Node& rope) {
    static const Node none = [] {
      Node map;
      map.kind = Node::Kind::map;
      return map;
    }();
    if (!is_object(rope)) return nullptr;
    for (const Node::Key& key : rope.keys)
      if (key.name != "full_attention" && key.name != "sliding_attention") {
        file_.refuse(fmt::format("{}: the key {} of its rope_parameters is not understood",
                                 file_.path(), key.name),
                     "such models have full_attention and sliding_attention there");
        return nullptr;
      }
    if (const Node* local = given(rope, "sliding_attention")) {
      if (!is_object(*local) || !check_spelling(*local)) return nullptr;
      const Node* type = given(*local, "rope_type");
      if (type && type->text != "default") {
        file_.refuse(fmt::format("{}: rotary positions of type {} in layers with a window are not "
                                 "built",
                                 file_.path(), type->text),
                     "default positions are; such a model cannot be used yet");
        return nullptr;
      }
      if (const Node* part = given(*local, kRotatedPart))
        file_.check_only(kRotatedPart, "1", *part);
      if (const Node* theta = given(*local, "rope_theta"))
        file_.set("model.rotary_base_local", *theta, "rope_theta", false, true);
    }
    const Node* full = given(rope, "full_attention");
    return full ? full : &none;
  }

  void read(const Node& rope) {
    if (!check_spelling(rope)) return;
    std::string word = type_of(rope);
    const bool phi3 = kind_ == RopeRule::phi3;
    if (phi3 && (word == "su" || word == "yarn")) word = "longrope";
    const auto* type = std::ranges::find(kRopeTypes, word, &RopeType::name);
    const bool of_phi3 = word == "default" || word == "longrope";
    if (type == std::end(kRopeTypes) || (phi3 && !of_phi3))
      return file_.refuse(
          fmt::format("{}: rotary positions of type {} are not supported{}", file_.path(), word,
                      phi3 ? " for such models" : ""),
          fmt::format("{}; such a model cannot be used yet",
                      phi3 ? "Phi-3 has default and longrope positions" : kBuiltRopes));
    for (const std::string& key : split(type->needed, ' '))
      if (!key.empty() && !given(rope, key))
        file_.refuse(
            fmt::format("{}: its rotary positions of type {} lack {}", file_.path(), word, key),
            "download the folder again");
    set_type(word == "default" ? "none" : word);
    for (size_t i = 0; i < rope.keys.size(); ++i) read_key(rope.keys[i].name, rope.items[i], *type);
    read_original_length(rope, *type);
    if (word == "longrope") check_longrope_factor(rope);
    if (const Node* theta = ConfigFile::find(rope, "rope_theta"))
      file_.set("model.rotary_base", *theta, "rope_theta", false, true);
  }

  void set_type(std::string_view type) {
    file_.set("model.rope_scaling.type", file_.scalar(type), "rope_type", false);
  }

  void read_key(const std::string& key, const Node& value, const RopeType& type) {
    if (key == "rope_theta" || key == "rope_type" || key == "type" || value.unset()) return;
    if (key == "finetuned")
      return;  // from YaRN's own code: the weights were trained with the scaling
    if (key == kRotatedPart && partial_) return file_.set(kRotaryPercent, value, key, false, true);
    if (key == kRotatedPart) return file_.check_only(key, "1", value);
    if (value.kind == Node::Kind::map)
      return file_.refuse(fmt::format("{}: its rotary positions differ by {}", file_.path(), key),
                          "such models have the same in all layers");
    if (type.name == "default") return;  // transformers ignores all other keys of this type
    if (key == kOriginalLength && reads(type, key)) return;
    if (key == "factor" && type.name == "longrope") return;
    if (reads(type, key)) return file_.set("model.rope_scaling." + key, value, key, false);
    file_.refuse(
        fmt::format("{}: the key {} of its rotary positions is not understood", file_.path(), key),
        fmt::format("positions of type {} have no such key in transformers", type.name));
  }

  // The original length may also stand beside the rotary positions. transformers 5 prefers that
  // one, and transformers 4 ignores it for some types. If absent, it is max_position_embeddings.
  // Phi-3 always has one beside them, by default 4096.
  void read_original_length(const Node& rope, const RopeType& type) {
    if (!reads(type, kOriginalLength)) return;
    const Node *inner = given(rope, kOriginalLength), *outer = file_.given(kOriginalLength);
    const Node of_phi3 = file_.scalar("4096");
    if (!outer && kind_ == RopeRule::phi3) outer = &of_phi3;
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

  // The attention factor follows from the quotient of the two lengths. If a `factor` differs from
  // the quotient, transformers 5 uses the factor and transformers 4 the quotient.
  void check_longrope_factor(const Node& rope) {
    const Node* factor = given(rope, "factor");
    if (!factor || given(rope, "attention_factor")) return;
    double value = 0;
    recipe::ValueError ignored;
    const double longest = file_.field_number("model.max_position_embeddings");
    const double original =
        file_.field_number("model.rope_scaling.original_max_position_embeddings");
    if (read_value(*factor, {}, value, ignored) && longest == value * original) return;
    file_.refuse(fmt::format("{}: the factor {} of its rotary positions is not {} / {}",
                             file_.path(), factor->text, longest, original),
                 "versions of transformers differ in which they take: give an attention_factor");
  }

  ConfigFile& file_;
  RopeRule kind_;
  bool partial_;
};

}  // namespace

void read_positions(ConfigFile& file, RopeRule kind, bool partial) {
  RopeReader(file, kind, partial).read();
}

void read_no_rope(ConfigFile& file) {
  const int64_t layers = file.number_of_layers();
  std::vector<bool> without;
  const Node* list = file.given("no_rope_layers");
  const char* key = list ? "no_rope_layers" : "no_rope_layer_interval";
  if (list) {
    if (list->kind != Node::Kind::list || int64_t(list->items.size()) < layers)
      return file.refuse(fmt::format("{}: no_rope_layers must list a number for each of the {} "
                                     "layers",
                                     file.path(), layers),
                         "a 1 is a layer with rotary positions, a 0 is one without");
    for (const Node& item : list->items)
      if (item.quoted || (item.text != "0" && item.text != "1"))
        return file.refuse(
            fmt::format("{}: no_rope_layers has {} among its 0 and 1", file.path(), describe(item)),
            "a 1 is a layer with rotary positions, a 0 is one without");
    for (int64_t l = 0; l < layers; ++l) without.push_back(list->items[size_t(l)].text == "0");
  } else {
    const std::optional<int64_t> interval = file.number(key, 4);
    if (!interval) return;
    if (*interval < 1)
      return file.refuse(fmt::format("{}: {} is {}, and must be at least 1", file.path(), key,
                                     file.find(key)->text),
                         "n means that layers n, 2 n, ... have no rotary positions");
    for (int64_t l = 0; l < layers; ++l) without.push_back((l + 1) % *interval == 0);
  }
  file.set("model.no_rope_freq", file.frequency(without, 1), key, false);
}

}  // namespace mtrain::interchange
