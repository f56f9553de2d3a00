// Rows of Parquet files, the format of most data sets on the Hugging Face Hub.
#pragma once
#include <filesystem>

namespace mtrain::data {

// Whether this build reads Parquet: it does if Apache Arrow was found when it was configured.
bool reads_parquet();

// Writes each row of a Parquet file as a JSON line. Throws UserError if the file cannot be read, or
// if this build does not read Parquet, and RunError if the lines cannot be written.
void parquet_to_json_lines(const std::filesystem::path& parquet,
                           const std::filesystem::path& lines);

}  // namespace mtrain::data
