#include "base/error.h"
#include "data/parquet/parquet_rows.h"

namespace mtrain::data {

bool reads_parquet() { return false; }

void parquet_to_json_lines(const std::filesystem::path& parquet, const std::filesystem::path&) {
  throw UserError(parquet.string() + " is parquet, which this build does not read",
                  "install pyarrow, and build mtrain again");
}

}  // namespace mtrain::data
