// The metrics of runs as a table for other programs.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::observe {

struct RunFile {
  std::string name;            // as the user gave it
  std::filesystem::path path;  // of metrics.jsonl
};

struct CsvOptions {
  std::vector<std::string> keys = {};           // empty: all
  std::optional<int64_t> from = {}, last = {};  // the first step; how many of the last steps
};

// Writes CSV with a header and a row per step; an evaluation is in the row of its step. The columns
// are `run` if there are several, `step`, and all keys, or `time` and the keys of the options.
// Missing values are empty. Throws UserError if a file has no record, or if no record has one of
// the keys.
void write_metrics_csv(const std::vector<RunFile>& runs, const CsvOptions& options,
                       const std::function<void(std::string_view text)>& write);

}  // namespace mtrain::observe
