// Tells weights on disk apart without reading them: ranks on several hosts compare what they see.
#pragma once
#include <string>
#include <vector>

#include "storage/safetensors.h"

namespace mtrain::storage {

// Returns a text that is the same for the same files: how many they are and how large, a hash of
// the names, types, shapes and places of their tensors, and one of their checksums or, for files
// without these, of the first and the last 256 bytes of each tensor. Reads no more of the data.
std::string weights_fingerprint(const std::vector<const SafetensorsReader*>& files);

}  // namespace mtrain::storage
