// What a recipe asks about families of models: the defaults of an architecture, and what a Hugging
// Face folder (model.from) says. lib/interchange, which knows the families, implements it; whoever
// reads a recipe hands it in.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "recipe/load/diagnostics.h"
#include "recipe/load/targets.h"
#include "recipe/schema/model.h"

namespace mtrain::recipe {

struct RawSettings;

// A field that a folder can set.
struct FolderField {
  std::string_view path;
  bool recipe_wins = false;  // it says how the model was trained, not what the model is
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // Returns a family's published choices (norm, positions, biases). Sizes have the defaults of
  // ModelConfig.
  virtual ModelConfig defaults(Architecture architecture) const = 0;

  // Adds to `given` what the folder named by its model.from says about the model. A size that the
  // recipe gives as well must agree. After an error no rule judges the model.
  virtual void read_folder(RawSettings& given, Diagnostics& diagnostics) const = 0;

  // Returns the fields that the keys of folders set.
  virtual std::span<const FolderField> folder_fields() const = 0;

  // Returns the classes of other systems that stand for a family in a recipe's `_target_`.
  virtual std::span<const Target> targets() const = 0;

  // Returns the family that a class of Megatron-Bridge names, which is the architecture of its
  // models; nothing for a family that is not supported.
  virtual std::optional<Architecture> megatron_family(std::string_view class_path) const = 0;
};

}  // namespace mtrain::recipe
