// ConfigFile converts a config.json to the settings of a recipe. reader.cpp uses it, and so do the
// readers of rotary positions, windows and routers.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interchange/families.h"
#include "recipe/load/diagnostics.h"
#include "recipe/load/raw_settings.h"
#include "recipe/load/value.h"

namespace mtrain::interchange {

using recipe::Node;
using recipe::RawSetting;
using recipe::RawSettings;

class ConfigFile {
 public:
  // `from` is the setting model.from; messages name its place in the recipe.
  ConfigFile(const RawSetting& from, RawSettings& given, Diagnostics& diagnostics)
      : from_(from), given_(given), diagnostics_(diagnostics) {}

  // Parses the text of the file, which messages call `path`. Returns false after an error.
  bool parse(const std::string& text, const std::string& path);

  // Adds the family to the name in later messages, since keys differ between families.
  void name_family(std::string_view model_type);

  const std::string& path() const { return path_; }
  const Node& root() const { return root_; }

  // find() returns a key's value; null if absent. given() returns null for a JSON null, too.
  const Node* find(std::string_view key) const { return find(root_, key); }
  const Node* given(std::string_view key) const { return given(root_, key); }
  static const Node* find(const Node& map, std::string_view key);
  static const Node* given(const Node& map, std::string_view key);

  // Returns a key's value as an integer, or `omitted` if it is absent or null. Refuses a value of a
  // different type, and returns nothing.
  std::optional<int64_t> number(std::string_view key, int64_t omitted);
  // Return the recipe's setting of a field; null, or 0, if it has none.
  const Node* field(std::string_view path) const;
  double field_number(std::string_view path) const;
  int64_t number_of_layers() const;

  // Sets a field from the value of `key`. `replace` also replaces a value from a different key. A
  // different value in the recipe itself is an error, unless `recipe_wins`.
  void set(std::string_view field, const Node& value, std::string_view key, bool recipe_wins,
           bool replace = false);
  // Makes the value of a key that is absent.
  Node scalar(std::string_view text) const;
  // Makes a value of no_rope_freq or window_attn_skip_freq: 0 if no layers are `apart`, n if n - 1,
  // 2 n - 1, ... are. Otherwise it is a list in which they have the number `mark`, 1 or 0.
  Node frequency(const std::vector<bool>& apart, int mark) const;

  // Refuses a value that is not in `built`, a list separated by blanks. Numbers are compared as
  // numbers.
  void check_only(std::string_view key, std::string_view built, const Node& value);
  void refuse(std::string reason, std::string hint);

 private:
  const RawSetting& from_;
  RawSettings& given_;
  Diagnostics& diagnostics_;
  std::string path_;
  Node root_;
};

// Reads rotary positions. `partial`: the family may rotate only a part of each head.
void read_positions(ConfigFile& file, RopeRule kind, bool partial);

// Reads which layers have no rotary positions, in families that have keys for this.
void read_no_rope(ConfigFile& file);

// Reads which layers have a window. `pattern` is the default n of WindowRule::patterned. Call
// read_no_rope() first, since WindowRule::without_rope depends on its result.
void read_windows(ConfigFile& file, WindowRule kind, int64_t pattern);

// Checks the settings of a router like DeepSeek-V3's. Refuses those that transformers cannot
// compute, and sets how groups are ranked.
void read_router(ConfigFile& file);

// Reads by which method a router like DeepSeek-V2's chooses experts, and from how many groups.
void read_limited_router(ConfigFile& file);

// Reads mlp_layer_types, and refuses a first_k_dense_replace that differs.
void read_mlp_types(ConfigFile& file);

}  // namespace mtrain::interchange
