// The tokenizer of models that read bytes, in Hugging Face's file format.
#pragma once
#include <cstdint>
#include <filesystem>

namespace mtrain::interchange {

inline constexpr int64_t kByteVocabulary = 257;  // 256 byte values, and the end of a document
inline constexpr int64_t kByteEnd = 256;

// The entry of a checkpoint's state.json which records that the model does not read bytes: its
// recipe names no tokenizer, but its training data had ids that the byte tokenizer lacks.
inline constexpr const char* kExceedsBytes = "ids_exceed_bytes";
bool exceeds_bytes(const std::filesystem::path& checkpoint);

// Writes tokenizer.json and tokenizer_config.json: a byte-level BPE without merges. The ids 0 to
// 255 are the byte values, and 256 is the end of a document. Throws RunError.
void write_byte_tokenizer(const std::filesystem::path& folder);

}  // namespace mtrain::interchange
