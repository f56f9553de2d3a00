// A config.json that is read into the settings of a recipe: what its readers share
// (reader.cpp, and those of rotary positions, windows and routers).
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
  // `from` is the setting model.from, whose place messages name.
  ConfigFile(const RawSetting& from, RawSettings& given, Diagnostics& diagnostics)
      : from_(from), given_(given), diagnostics_(diagnostics) {}

  // Parses the text of the file; messages call it `path`. Returns false after an error.
  bool parse(const std::string& text, const std::string& path);

  // Names the family in later messages, too, since the keys of families differ.
  void name_family(std::string_view model_type);

  const std::string& path() const { return path_; }
  const Node& root() const { return root_; }

  // Returns a key's value, or null; given() returns null for a value of null, too.
  const Node* find(std::string_view key) const { return find(root_, key); }
  const Node* given(std::string_view key) const { return given(root_, key); }
  static const Node* find(const Node& map, std::string_view key);
  static const Node* given(const Node& map, std::string_view key);

  // Returns a key's value as a number; `omitted` if there is none. Returns nothing, and refuses the
  // value, if it is of another type.
  std::optional<int64_t> number(std::string_view key, int64_t omitted);
  // Returns what is set for a field of the recipe; or null, and 0.
  const Node* field(std::string_view path) const;
  double field_number(std::string_view path) const;
  int64_t number_of_layers() const;

  // Sets a field by what `key` says; `replace` also replaces what another key has said. A recipe
  // that says something else itself is an error, unless it wins.
  void set(std::string_view field, const Node& value, std::string_view key, bool recipe_wins,
           bool replace = false);
  // Makes a value that stands for a key which is left out.
  Node scalar(std::string_view text) const;
  // Makes a value of no_rope_freq or window_attn_skip_freq: n if the layers that are `apart` are
  // n - 1, 2 n - 1, ...; 0 if none is; else a list in which they have the number `mark`, 1 or 0.
  Node frequency(const std::vector<bool>& apart, int mark) const;

  // Refuses a value that is none of those that are built, which blanks separate; numbers are
  // compared as numbers.
  void check_only(std::string_view key, std::string_view built, const Node& value);
  void refuse(std::string reason, std::string hint);

 private:
  const RawSetting& from_;
  RawSettings& given_;
  Diagnostics& diagnostics_;
  std::string path_;
  Node root_;
};

// Reads rotary positions; `partial`: the family may rotate a part of each head.
void read_positions(ConfigFile& file, RopeRule kind, bool partial);

// Reads which layers have no rotary positions, in families that have keys for it.
void read_no_rope(ConfigFile& file);

// Reads which layers have a window; `pattern` is n of a patterned kind. Layers without rotary
// positions have been read before.
void read_windows(ConfigFile& file, WindowRule kind, int64_t pattern);

// Reads what the rows leave open of routers of DeepSeek-V3's kind, and refuses those that mtrain,
// or transformers, cannot compute.
void read_router(ConfigFile& file);

}  // namespace mtrain::interchange
