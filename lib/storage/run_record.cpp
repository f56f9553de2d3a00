#include "storage/run_record.h"

#include <unistd.h>
#include <algorithm>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "storage/folder_lock.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

constexpr int kRunRecordVersion = 1;

nlohmann::ordered_json to_json(const RunRecord& r) {
  nlohmann::ordered_json j;
  j["version"] = kRunRecordVersion;
  j["state"] = enum_name(r.state);
  j["step"] = r.step;
  j["last_step"] = r.last_step;
  j["attempts"] = r.attempts;
  j["ranks"] = r.ranks;
  if (r.exit_code) j["exit_code"] = *r.exit_code;
  if (r.culprit) {
    nlohmann::ordered_json& c = j["culprit"];
    if (r.culprit->rank >= 0) c["rank"] = r.culprit->rank;
    if (!r.culprit->host.empty()) c["host"] = r.culprit->host;
    c["message"] = r.culprit->message;
  }
  j["started"] = r.started;
  j["updated"] = r.updated;
  j["host"] = r.host;
  j["pid"] = r.pid;
  if (!r.job.empty()) j["job"] = r.job;
  if (r.pulse_fd >= 0) j["pulse_fd"] = r.pulse_fd;
  if (r.launcher > 0) j["launcher"] = {{"host", r.launcher_host}, {"pid", r.launcher}};
  return j;
}

RunRecord record_of(const nlohmann::json& j) {
  RunRecord r;
  const auto state = j.at("state").get<std::string>();
  const auto names = enum_names(RunState());
  const auto known = std::ranges::find(names, state, &EnumName<RunState>::name);
  if (known == names.end()) throw UserError(fmt::format("there is no state `{}`", state));
  r.state = known->value;
  r.step = j.at("step").get<int64_t>();
  r.last_step = j.value("last_step", int64_t{0});
  r.attempts = j.value("attempts", int64_t{1});
  r.ranks = j.value("ranks", 1);
  if (j.contains("exit_code")) r.exit_code = j["exit_code"].get<int>();
  if (j.contains("culprit")) {
    const nlohmann::json& c = j["culprit"];
    r.culprit = RunCulprit{.rank = c.value("rank", -1),
                           .host = c.value("host", ""),
                           .message = c.value("message", "")};
  }
  r.started = j.value("started", "");
  r.updated = j.value("updated", "");
  r.host = j.value("host", "");
  r.job = j.value("job", "");
  r.pid = j.value("pid", int64_t{0});
  r.pulse_fd = j.value("pulse_fd", -1);
  if (j.contains("launcher")) {
    r.launcher_host = j["launcher"].value("host", "");
    r.launcher = j["launcher"].value("pid", int64_t{0});
  }
  return r;
}

}  // namespace

fs::path run_record_path(const fs::path& run_folder) { return run_folder / "run.json"; }

void write_run_record(const fs::path& run_folder, RunRecord record) {
  record.updated = utc_now();
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  write_file_atomic(run_record_path(run_folder),
                    to_json(record).dump(2, ' ', false, replace) + "\n");
}

std::optional<RunRecord> read_run_record(const fs::path& run_folder) {
  const fs::path file = run_record_path(run_folder);
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  constexpr const char* kHint = "a run writes it again when it starts";
  const nlohmann::json j = read_json(file, kHint);
  try {
    return record_of(j);
  } catch (const nlohmann::json::exception& e) {
    throw UserError(fmt::format("{}: not the record of a run: {}", file.string(), e.what()), kHint);
  } catch (const UserError& e) {
    throw UserError(fmt::format("{}: {}", file.string(), e.message()), kHint);
  }
}

namespace {

// Whether the process that would write the end is gone, if no rank holds the folder.
bool has_no_writer(const RunRecord& r) {
  if (r.state == RunState::running) return true;
  return r.state == RunState::restarting && r.launcher > 0 && r.launcher_host == host_name() &&
         !process_lives(r.launcher);
}

}  // namespace

std::optional<RunRecord> current_run_record(const fs::path& run_folder) {
  auto record = read_run_record(run_folder);
  if (!record || !has_no_writer(*record) || is_folder_held(run_folder)) return record;
  // The run may have ended between the two looks.
  record = read_run_record(run_folder);
  if (record && has_no_writer(*record)) record->state = RunState::lost;
  return record;
}

void record_job_end(const fs::path& run_folder, const JobEnd& end) {
  auto record = read_run_record(run_folder);
  if (!record || record->job != end.job) return;
  record->state = end.state;
  record->exit_code.reset();
  if (end.state != RunState::restarting) record->exit_code = end.exit_code;
  record->step = std::max(record->step, end.step);
  record->culprit = end.culprit;
  record->launcher_host = host_name();
  record->launcher = ::getpid();
  write_run_record(run_folder, std::move(*record));
}

}  // namespace mtrain::storage
