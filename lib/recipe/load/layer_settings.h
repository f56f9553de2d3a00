// Collects the settings that one layer, a file or an override, makes under any of their names.
#pragma once
#include <string>
#include <string_view>

#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {

// Returns the node of an unquoted text at this place of the recipe.
Node plain_scalar(std::string_view text, const SourceLocation& location);

class LayerSettings {
 public:
  LayerSettings(Diagnostics& collected, Origin origin) : diagnostics(collected), origin_(origin) {}

  // Sets a field under the name `spelling`. Two names of a field that disagree are an error.
  void add(const SchemaRow* row, std::string spelling, const SourceLocation& location, Node node);
  // Sets a part of a field's value, which a name of another system decides.
  void add_part(const ForeignSpelling& name, const SourceLocation& location, Node node);
  void add_text(std::string_view field, std::string spelling, const SourceLocation& location,
                std::string_view text) {
    add(find_row(field), std::move(spelling), location, plain_scalar(text, location));
  }

  Diagnostics& diagnostics;
  RawSettings given;
  // True while the fields of a dump are read. A dump lists every field of its classes, so null does
  // not reset a field there.
  bool in_dump = false;

 private:
  void note_place(const RawSetting& g);
  bool agrees_with_others(const RawSetting& g);
  void refuse_second(const RawSetting& before, const RawSetting& g);

  Origin origin_;
};

}  // namespace mtrain::recipe
