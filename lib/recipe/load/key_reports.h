// What the user is told of keys that set no field.
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

  // Reports a key of another system once, and keeps its value where rules compare it.
  void foreign(const ForeignKey& key, const std::string& path, const SourceLocation& location,
               const Node& node);
  // Refuses a key that nobody knows. The list of them ends after 50.
  void unknown(const std::string& path, const SourceLocation& location);
  // Warns once of Hydra's options, which say how a class is constructed.
  void hydra_option(const std::string& name, const SourceLocation& location);
  // Counts a field of Megatron that mtrain does not have, if its value says that it is off. Returns
  // false if it is not.
  bool count_off(const SourceLocation& location, const Node& node);
  // Reports how many there were.
  void fields_off();

 private:
  LayerSettings& layer_;
  std::set<std::string_view> told_;  // paths of foreign keys
  bool hydra_warned_ = false;
  int refused_ = 0, off_ = 0;
  SourceLocation off_location_;
};

}  // namespace mtrain::recipe
