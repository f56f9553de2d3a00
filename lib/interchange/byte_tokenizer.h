// The tokenizer of models that read bytes, in the form that other programs load.
#pragma once
#include <cstdint>
#include <filesystem>

namespace mtrain::interchange {

inline constexpr int64_t kByteVocabulary = 257;  // the bytes, and the end of a document
inline constexpr int64_t kByteEnd = 256;

// The entry of a checkpoint's state that says: the recipe names no tokenizer, and the training has
// read ids that the byte tokenizer does not have. Bytes are then not what the model reads.
inline constexpr const char* kExceedsBytes = "ids_exceed_bytes";
bool exceeds_bytes(const std::filesystem::path& checkpoint);

// Writes tokenizer.json and tokenizer_config.json: a byte-level BPE without merges, whose ids are
// the byte values, and 256 for the end of a document. Throws RunError.
void write_byte_tokenizer(const std::filesystem::path& folder);

}  // namespace mtrain::interchange
