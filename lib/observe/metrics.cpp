#include "observe/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

namespace mtrain::observe {

using nlohmann::json;

namespace {

// Returns whether a line is a complete record, and of no step that the run repeats.
bool stays(std::string_view line, int64_t steps_done) {
  json record;
  try {
    record = parse_json(line, "");
  } catch (const UserError&) {
    return false;
  }
  if (!record.is_object()) return false;
  const auto step = record.find("step");
  return step == record.end() || !step->is_number_integer() || step->get<int64_t>() <= steps_done;
}

void drop_lines(const std::filesystem::path& path, int64_t steps_done) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  const MappedFile file(path);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()),
                             file.bytes().size());
  std::string kept;
  for (std::string_view rest = all; !rest.empty();) {
    const auto newline = rest.find('\n');
    if (newline == std::string_view::npos) break;  // an incomplete last line
    const auto line = rest.substr(0, newline + 1);
    rest.remove_prefix(line.size());
    if (stays(line, steps_done)) kept += line;
  }
  if (kept.size() != all.size()) write_file_atomic(path, kept);
}

}  // namespace

MetricsWriter::MetricsWriter(std::filesystem::path path, int64_t steps_done)
    : path_(std::move(path)) {
  drop_lines(path_, steps_done);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0)
    throw RunError(fmt::format("cannot open {}: {}", path_.string(), std::strerror(errno)),
                   "check train.run_dir");
}

MetricsWriter::~MetricsWriter() { ::close(fd_); }

void MetricsWriter::write(int64_t step, const std::vector<Metric>& metrics) {
  nlohmann::ordered_json record{{"step", step}};
  for (const Metric& m : metrics) {
    auto& value = record[std::string(m.name)];
    if (const auto* number = std::get_if<double>(&m.value)) {
      if (std::isfinite(*number)) value = *number;  // else it stays null
    } else {
      std::visit([&](const auto& v) { value = v; }, m.value);
    }
  }
  const std::string line =
      record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  struct stat before {};
  ::fstat(fd_, &before);
  ssize_t n = 0;
  do n = ::write(fd_, line.data(), line.size());
  while (n < 0 && errno == EINTR);
  if (n == ssize_t(line.size())) return;
  const int reason = n < 0 ? errno : ENOSPC;
  if (n > 0 && ::ftruncate(fd_, before.st_size) != 0) ::write(fd_, "\n", 1);
  if (!std::exchange(warned_, true))
    log::warn(fmt::format("cannot write {}: {}; the training goes on, but lines are missing",
                          path_.string(), std::strerror(reason)));
}

}  // namespace mtrain::observe
