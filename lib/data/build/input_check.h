// Refuses input files that are not text, before their bytes silently become tokens.
#pragma once
#include <cstddef>
#include <string_view>

#include "data/build/chunk_reader.h"

namespace mtrain::data {

inline constexpr size_t kSignatureBytes = 9;  // enough for every known format

// Throws UserError if the file begins with the signature of another format, such as Parquet or
// gzip. The message names the command that converts it.
void refuse_other_format(const std::filesystem::path& file, std::string_view first_bytes);

// Throws UserError if a chunk of a text file is not UTF-8 or has NUL bytes. The message names the
// line, and the byte of the file.
void refuse_invalid_text(const Chunk& chunk);

}  // namespace mtrain::data
