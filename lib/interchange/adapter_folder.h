// Folders of adapters in the format of peft
// (https://huggingface.co/docs/peft/developer_guides/checkpoint): adapter_config.json and
// adapter_model.safetensors.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "interchange/merged_weights.h"
#include "interchange/tensor_map.h"

namespace mtrain::interchange {

inline constexpr const char *kAdapterConfig = "adapter_config.json",
                            *kAdapterModel = "adapter_model.safetensors";

struct WrittenAdapter {
  int64_t parameters = 0, bytes = 0;
};

// Writes both files into `folder`, which exists. `adapters` are those of `lora`, and have their
// tensors in `factors`. `base` is the folder of the base model, which the configuration names.
// Throws UserError if a module of the family has only a part of an adapter.
WrittenAdapter write_adapter_folder(const std::filesystem::path& folder, const TensorMap& map,
                                    const storage::ValueSource& factors,
                                    const std::vector<Adapter>& adapters, const spec::Lora& lora,
                                    const std::string& base, DType dtype);

// Returns the bytes of the tensors that write_adapter_folder() writes.
int64_t adapter_folder_bytes(const TensorMap& map, const storage::ValueSource& factors,
                             const std::vector<Adapter>& adapters, DType dtype);

// Throws UserError as write_adapter_folder(), and writes nothing.
void check_adapter_folder(const TensorMap& map, const std::vector<Adapter>& adapters);

// Whether the folder has an adapter in the format of peft.
bool has_adapter(const std::filesystem::path& folder);

struct AdapterFolder {
  std::shared_ptr<const storage::ValueSource> factors;
  std::vector<Adapter> adapters;
  std::string fingerprint;  // ranks compare theirs
};

// Opens an adapter for the model of `map`. Throws one UserError with all mistakes: settings that
// mtrain does not support (DoRA, biases, other modules), modules that the model lacks, and factors
// that are missing.
AdapterFolder open_adapter_folder(const std::filesystem::path& folder, const TensorMap& map);

}  // namespace mtrain::interchange
