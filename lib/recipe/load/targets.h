// Hydra's `_target_`: the class or function that a section of another system's recipe constructs.
// mtrain runs no Python; a class that it knows chooses what it names, by fields of the recipe.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/schema/model.h"

namespace mtrain::recipe {

class ModelSource;

struct FieldText {
  std::string_view path, text;
};

struct Target {
  std::string_view section;  // the section that it may stand in
  // The end of the class's dotted path, whole words: "optim.AdamW" is also "torch.optim.AdamW".
  std::string_view name;
  // What the class decides, and what it takes for its own arguments that the recipe leaves out.
  std::vector<FieldText> sets = {}, defaults = {};
  // Arguments that set another field than that of their name.
  struct Argument {
    std::string_view path, field;
  };
  std::vector<Argument> arguments = {};
};

// Returns the known class of that section, or null. `class_path` is dotted: "torch.optim.AdamW".
const Target* find_target(const ModelSource& models, std::string_view section,
                          std::string_view class_path);

// Whether the class belongs to Megatron-Bridge or Megatron-Core, whose recipes name every field of
// theirs, those that are off as well.
bool is_megatron_class(std::string_view class_path);

// Returns the architecture of a model provider of Megatron-Bridge, which names its family or is the
// general one; nothing for a family that is not built.
std::optional<Architecture> megatron_architecture(const ModelSource& models,
                                                  std::string_view class_path);

// Returns what to write in the section instead of a class that mtrain does not know.
std::string native_way(std::string_view section);

}  // namespace mtrain::recipe
