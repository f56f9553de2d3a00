// Hydra's `_target_`: the class or function that a section of another system's recipe constructs.
// mtrain does not run Python. A class that it knows sets fields of the recipe instead.
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
  // The last parts of the class's dotted path: "optim.AdamW" is also "torch.optim.AdamW".
  std::string_view name;
  // The fields that the class decides, and the defaults of its own arguments.
  std::vector<FieldText> sets = {}, defaults = {};
  // Arguments that set a field with a different name.
  struct Argument {
    std::string_view path, field;
  };
  std::vector<Argument> arguments = {};
  std::string_view warning = {};  // what mtrain does differently
};

// Returns the known class of that section, or null. `class_path` is dotted: "torch.optim.AdamW".
const Target* find_target(const ModelSource& models, std::string_view section,
                          std::string_view class_path);

// Whether the class belongs to Megatron-Bridge or Megatron-Core. Their recipes list every field of
// a class, also the fields that are off.
bool is_megatron_class(std::string_view class_path);

// Returns the architecture of a model provider of Megatron-Bridge: that of the family it names, or
// the default one for the general GPTModelProvider. Returns nothing for other families.
std::optional<Architecture> megatron_architecture(const ModelSource& models,
                                                  std::string_view class_path);

// Returns what to write in the section instead of a class that mtrain does not know.
std::string native_way(std::string_view section);

}  // namespace mtrain::recipe
