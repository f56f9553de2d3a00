#include "interchange/model_source.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "interchange/config/keys.h"
#include "interchange/config/reader.h"
#include "interchange/families.h"

namespace mtrain::interchange {

namespace {

using recipe::Architecture;

const Family& family_of(Architecture architecture) {
  const auto at = std::ranges::find(families(), enum_name(architecture), &Family::model_type);
  MT_CHECK(at != families().end(), "no family of the architecture {}", enum_name(architecture));
  return *at;
}

Architecture architecture_of(const Family& family) {
  for (const auto& [value, name] : enum_names(Architecture{}))
    if (name == family.model_type) return value;
  throw BugError("a family without an architecture");
}

class Source : public recipe::ModelSource {
 public:
  Source() {
    for (const Family& family : families()) {
      add_config_class(family);
      targets_.insert(targets_.end(), family.targets.begin(), family.targets.end());
      for (const ConfigKey& key : config_keys(family))
        if (!key.field.empty()) fields_.push_back({key.field, key.recipe_wins});
    }
  }

  ModelConfig defaults(Architecture architecture) const override {
    ModelConfig m;
    if (const auto& set = family_of(architecture).defaults) set(m);
    m.architecture = architecture;
    return m;
  }

  void read_folder(recipe::RawSettings& given, Diagnostics& diagnostics) const override {
    read_config_folder(given, diagnostics);
  }

  std::span<const recipe::FolderField> folder_fields() const override { return fields_; }
  std::span<const recipe::Target> targets() const override { return targets_; }

  // Takes the longest name that matches, since "Qwen3" is also a part of "Qwen3MoE".
  std::optional<Architecture> megatron_family(std::string_view class_path) const override {
    const Family* found = nullptr;
    for (const Family& family : families())
      if (!family.bridge_name.empty() &&
          class_path.find(family.bridge_name) != std::string_view::npos &&
          (!found || family.bridge_name.size() > found->bridge_name.size()))
        found = &family;
    if (!found) return std::nullopt;
    return architecture_of(*found);
  }

 private:
  // Adds transformers' configuration class of the family. Its defaults are those of absent keys.
  void add_config_class(const Family& family) {
    if (family.config_class.empty()) return;
    recipe::Target target{.section = "model.config",
                          .name = family.config_class,
                          .sets = {{"model.architecture", family.model_type}}};
    for (const ConfigKey& key : config_keys(family))
      if (!key.omitted.empty() && !key.field.empty())
        target.defaults.push_back({key.field, key.omitted});
    targets_.push_back(std::move(target));
  }

  std::vector<recipe::FolderField> fields_;
  std::vector<recipe::Target> targets_;
};

}  // namespace

const recipe::ModelSource& model_source() {
  static const Source source;
  return source;
}

}  // namespace mtrain::interchange
