// Reports to the user about keys that set no field.
#pragma once
#include <set>
#include <string>
#include <string_view>

#include "recipe/load/foreign_keys.h"
#include "recipe/load/layer_settings.h"

namespace mtrain::recipe {

class KeyReports {
 public:
  explicit KeyReports(LayerSettings& layer) : layer_(layer) {}

  // Reports a key of another system, or a section of which all keys mean the same, once. Keeps its
  // value if it is compared with fields.
  void foreign(const ForeignKey& key, const std::string& path, const SourceLocation& location,
               const Node& node);
  // Adds an error for an unknown key. Lists at most 50 of them.
  void unknown(const std::string& path, const SourceLocation& location);
  // Warns once about Hydra's options for the construction of a class.
  void hydra_option(const std::string& name, const SourceLocation& location);
  // Counts a Megatron field that mtrain does not have, if its value turns the feature off. Returns
  // false for other values.
  bool count_off(const SourceLocation& location, const Node& node);
  // Reports how many fields count_off() has counted.
  void fields_off();

 private:
  LayerSettings& layer_;
  std::set<std::string, std::less<>> reported_;  // paths of foreign keys, or of their rows
  bool hydra_warned_ = false;
  int refused_ = 0, off_ = 0;
  SourceLocation off_location_;
};

}  // namespace mtrain::recipe
