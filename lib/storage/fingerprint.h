// Identifies weights on disk without reading them: ranks on several hosts compare what they see.
#pragma once
#include <string>
#include <vector>

#include "storage/safetensors.h"

namespace mtrain::storage {

// Returns a text that is the same for the same files. It has their number and size, and a hash of
// the names, types, shapes and offsets of their tensors. A second hash is of their checksums or,
// for files without these, of the first and the last 256 bytes of each tensor. Other data is not
// read.
std::string weights_fingerprint(const std::vector<const SafetensorsReader*>& files);

// Returns a hash of the tensors of all files: their names, types and shapes, and evenly spread
// blocks of 4 KiB of each: 16, or fewer if there are more than 256 tensors, and at least 2. Small
// tensors are read whole. Training changes nearly all values of a tensor, so the blocks show it.
// The hash does not depend on how the tensors are spread over files.
std::string tensors_content(const std::vector<const SafetensorsReader*>& files);

}  // namespace mtrain::storage
