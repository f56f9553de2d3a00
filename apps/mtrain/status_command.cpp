// Prints what a run does, or how it has ended: run.json, and the pulses of its ranks.
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "base/file.h"
#include "base/pulse.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "commands.h"
#include "launch/job_processes.h"
#include "run/run_folder.h"
#include "storage/run_record.h"

namespace mtrain {

namespace {

namespace fs = std::filesystem;
using storage::RunRecord;
using storage::RunState;

// A folder in the run folder, such as that of a checkpoint, means the run.
fs::path run_folder_of(const std::string& run) {
  fs::path folder = fs::path(run).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  std::error_code error;
  for (fs::path at = folder; !at.empty(); at = at.parent_path()) {
    if (fs::exists(storage::run_record_path(at), error)) return at;
    if (at == at.parent_path()) break;
  }
  if (!fs::exists(folder, error))
    throw UserError(fmt::format("there is no folder {}", run), "give the train.run_dir of a run");
  throw UserError(fmt::format("{} has no run.json", run),
                  "give the train.run_dir of a run that has begun to train");
}

// Returns the pulses of the ranks on this host, by rank. The page of a rank whose process has
// ended in the meantime is not found.
std::vector<PulseState> live_pulses(const fs::path& folder, const RunRecord& run) {
  if (run.state != RunState::running) return {};
  std::vector<PulseState> found;
  const auto add = [&](int64_t pid, int fd) {
    if (fd < 0) return;
    const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
    // The number is that of a file: opening anything else may have effects.
    std::error_code error;
    if (!fs::read_symlink(path, error).string().starts_with("/memfd:mtrain-pulse")) return;
    const auto state = Pulse::read(path);
    if (state && state->pid == pid) found.push_back(*state);
  };
  if (!run.job.empty()) {
    auto ids = run::recorded_jobs(folder);  // of the launchers of all hosts
    ids.insert(run.job);
    for (const launch::JobProcess& p : launch::processes_of_jobs(ids)) add(p.pid, p.pulse_fd);
  }
  // Without mtrain-launch a rank makes its page itself.
  if (found.empty() && run.host == host_name()) add(run.pid, run.pulse_fd);
  std::ranges::sort(found, {}, &PulseState::rank);
  return found;
}

double seconds_since(double moment) {
  return moment > 0 ? std::max(0.0, double(std::time(nullptr)) - moment) : -1;
}

nlohmann::ordered_json pulse_json(const PulseState& p) {
  nlohmann::ordered_json j;
  j["rank"] = p.rank;
  j["pid"] = p.pid;
  j["phase"] = phase_name(p.phase);
  j["step"] = p.step;
  j["seconds_in_phase"] = seconds_since(p.began);
  j["limit_s"] = p.limit_s;
  j["median_step_s"] = p.median_step_s;
  j["memory_bytes"] = p.memory;
  j["memory_peak_bytes"] = p.memory_peak;
  if (p.exposed_s >= 0) j["exposed_s"] = p.exposed_s;
  j["launches"] = p.launches;
  for (const PulseState::Stream& s : p.streams)
    j["streams"][s.name] = {{"enqueued", s.enqueued}, {"done", s.done}};
  if (p.current()) j["at"] = current_text(p);
  return j;
}

std::string status_json(const RunRecord& run, const std::vector<PulseState>& pulses) {
  nlohmann::ordered_json j;
  j["state"] = enum_name(run.state);
  j["step"] = run.step;
  j["last_step"] = run.last_step;
  j["attempts"] = run.attempts;
  j["ranks"] = run.ranks;
  if (run.exit_code) j["exit_code"] = *run.exit_code;
  if (run.culprit)
    j["culprit"] = {{"rank", run.culprit->rank < 0 ? nlohmann::ordered_json()
                                                   : nlohmann::ordered_json(run.culprit->rank)},
                    {"host", run.culprit->host},
                    {"message", run.culprit->message}};
  j["started"] = run.started;
  j["updated"] = run.updated;
  j["host"] = run.host;
  j["pulses_host"] = host_name();  // ranks of other hosts are not seen from here
  j["pulses"] = nlohmann::ordered_json::array();
  for (const PulseState& p : pulses) j["pulses"].push_back(pulse_json(p));
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// Further lines are indented: a message cannot look like a line of the status.
std::string message_text(const std::string& message) {
  constexpr size_t kMostLines = 20, kLongestLine = 500;
  std::string out;
  const std::vector<std::string> lines = split(message, '\n');
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i)
    out += (i > 0 ? "\n  " : "") + printable(lines[i], kLongestLine);
  return out;
}

std::string status_text(const std::string& name, const RunRecord& run,
                        const std::vector<PulseState>& pulses, int width) {
  std::string text = fmt::format("{}: {}, step {}", name, enum_name(run.state), run.step);
  if (run.last_step > 0) text += fmt::format(" of {}", run.last_step);
  text +=
      fmt::format(", attempt {}, {} rank{}\n", run.attempts, run.ranks, run.ranks == 1 ? "" : "s");
  if (run.exit_code && run.state != RunState::done)
    text += fmt::format("exit code {}\n", *run.exit_code);
  if (run.culprit) {
    const bool earlier = run.state == RunState::running || run.state == RunState::restarting ||
                         run.state == RunState::lost;
    const std::string& host = run.culprit->host;
    text +=
        fmt::format("{}{}{}\n", earlier ? "the attempt before: " : "",
                    host.empty() ? "" : printable(host) + ": ", message_text(run.culprit->message));
  }
  if (run.state == RunState::lost) {
    text += fmt::format("nobody holds the folder: process {} on {} has ended without a word\n",
                        run.pid, printable(run.host));
    if (run.culprit && run.launcher > 0)
      text += fmt::format("its launcher was process {} on {}\n", run.launcher,
                          printable(run.launcher_host));
  }
  text += fmt::format("started {} on {}, last written {}\n", printable(run.started),
                      printable(run.host), printable(run.updated));
  if (run.state != RunState::running) return text;
  if (pulses.empty())
    return text + "no rank of it runs on this host under this user" +
           (run.host == host_name()
                ? "\n"
                : fmt::format("; ask on {}, where rank 0 runs\n", printable(run.host)));
  const TableColumn::Align left = TableColumn::Align::left;
  std::vector<std::vector<std::string>> rows;
  for (const PulseState& p : pulses)
    rows.push_back({std::to_string(p.rank), phase_text(p), human_duration(seconds_since(p.began)),
                    p.median_step_s > 0 ? fmt::format("{:.3g} s", p.median_step_s) : "",
                    p.exposed_s >= 0 && p.median_step_s > 0
                        ? fmt::format("{:.1f} %", 100 * p.exposed_s / p.median_step_s)
                        : "",
                    human_bytes(double(p.memory_peak)), current_text(p)});
  return text + text_table({{"rank"},
                            {"phase", 8, left},
                            {"for", 6},
                            {"step time", 11},
                            {"exposed", 9},
                            {"peak", 10},
                            {"  at", 6, left}},
                           rows, width);
}

}  // namespace

void add_status_command(CLI::App& app) {
  struct Options {
    std::string run;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "status", "print what a run does: its state, its culprit, and what each rank is at");
  set_examples(*command, {"mtrain status runs/first", "mtrain status runs/first --json"});
  command->add_option("run", o->run, "run folder")->required();
  command->add_flag("--json", o->json, "print JSON");
  command->callback([o] {
    const fs::path folder = run_folder_of(o->run);
    auto run = storage::current_run_record(folder);
    if (!run) throw UserError(fmt::format("{} has no run.json", folder.string()));
    const std::vector<PulseState> pulses = live_pulses(folder, *run);
    for (const PulseState& p : pulses) run->step = std::max(run->step, p.done_step);
    const std::string text =
        o->json ? status_json(*run, pulses)
                : status_text(folder.string(), *run, pulses,
                              isatty(STDOUT_FILENO) ? line_width(STDOUT_FILENO) : 0);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace mtrain
