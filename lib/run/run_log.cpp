#include "run/run_log.h"

#include <memory>

#include <fmt/core.h>

#include "base/log.h"
#include "observe/line_file.h"
#include "storage/folder_lock.h"

namespace mtrain::run {

RunLog::RunLog(const std::filesystem::path& run_dir) {
  const auto file = std::make_shared<observe::LineFile>(path(run_dir));
  file->append(fmt::format("--- {} ---\n", storage::utc_now()));
  log::set_record([file](std::string_view lines) { file->append(lines); });
}

RunLog::~RunLog() { log::set_record(nullptr); }

std::filesystem::path RunLog::path(const std::filesystem::path& run_dir) {
  return run_dir / "log.txt";
}

}  // namespace mtrain::run
