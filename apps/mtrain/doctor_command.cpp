// Examines this host, or all hosts of a job, before a training.
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "base/file.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "base/token.h"
#include "commands.h"
#include "launch/host_checks.h"
#include "launch/job.h"
#include "run/doctor.h"
#include "store/store.h"

namespace mtrain {

namespace {

using nlohmann::ordered_json;
using run::DoctorRow;
using run::Verdict;

struct DoctorCommandOptions {
  run::DoctorOptions examined;
  std::string run_dir = "runs";
  bool hosts = false, json = false;
};

struct HostRows {
  std::string host;
  std::vector<DoctorRow> rows;
};

// The libraries that a training would use, and what a missing one costs.
std::vector<DoctorRow> library_rows() {
  constexpr std::string_view cuda = MTRAIN_CUDA_VERSION;
  std::vector<DoctorRow> rows;
  std::string text = version_text();
  // version_text() has a line for each kind of device.
  for (size_t begin = text.find('\n'); begin != std::string::npos;) {
    const size_t end = text.find('\n', begin + 1);
    std::string line = text.substr(begin + 1, end == std::string::npos ? end : end - begin - 1);
    line.erase(0, line.find_first_not_of(' '));
    const bool missing = line.find("not found") != std::string::npos ||
                         line.find("cannot") != std::string::npos ||
                         line.find("without this CPU") != std::string::npos;
    rows.push_back({.check = "library",
                    .value = line,
                    .verdict = missing ? Verdict::warning : Verdict::ok,
                    .hint = missing ? "mtrain's own kernels replace it, and are slower" : ""});
    begin = end;
  }
  rows.push_back(
      {.check = "library", .value = "GEMMs on CPUs are mtrain's own: no BLAS is needed"});
  if (cuda.empty() && run::examine_gpus().size() > 1)
    rows.push_back({.check = "library",
                    .value = "this build has no CUDA: the GPUs stay idle",
                    .verdict = Verdict::warning,
                    .hint = "configure with -DMTRAIN_CUDA=ON"});
  return rows;
}

ordered_json rows_json(const HostRows& h) {
  ordered_json j{{"host", h.host}, {"rows", ordered_json::array()}};
  for (const DoctorRow& row : h.rows)
    j["rows"].push_back({{"check", row.check},
                         {"value", row.value},
                         {"verdict", enum_name(row.verdict)},
                         {"hint", row.hint}});
  return j;
}

HostRows rows_of_json(const std::string& text) {
  const auto j = nlohmann::json::parse(text);
  HostRows h{.host = j.at("host").get<std::string>(), .rows = {}};
  for (const auto& row : j.at("rows")) {
    const auto verdict = row.at("verdict").get<std::string>();
    h.rows.push_back({row.at("check").get<std::string>(), row.at("value").get<std::string>(),
                      verdict == "fault"     ? Verdict::fault
                      : verdict == "warning" ? Verdict::warning
                                             : Verdict::ok,
                      row.at("hint").get<std::string>()});
  }
  return h;
}

std::string dump(const ordered_json& j, int indent) {
  return j.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

// Adds to each host's rows how its clock differs from that of host 0. `texts` has the clocks of all
// ranks' hosts, read just after all had met; empty on ranks that are not the first of their host.
void add_clocks(std::vector<HostRows>& hosts, const std::vector<std::string>& texts) {
  std::vector<launch::HostClock> clocks;
  for (const std::string& text : texts)
    if (!text.empty()) clocks.push_back({"", std::strtod(text.c_str(), nullptr)});
  for (size_t i = 0; i < std::min(clocks.size(), hosts.size()); ++i) clocks[i].host = hosts[i].host;
  const auto checks = launch::compare_clocks(clocks);
  for (size_t i = 0; i < checks.size() && i + 1 < hosts.size(); ++i)
    hosts[i + 1].rows.push_back({.check = "clock, hosts",
                                 .value = checks[i].value,
                                 .verdict = checks[i].hint.empty() ? Verdict::ok : Verdict::warning,
                                 .hint = checks[i].hint});
}

// The first rank of each host examines it. Rank 0 gets the rows of all hosts; the other ranks get
// none.
std::vector<HostRows> rows_of_all_hosts(const launch::Job& job, const HostRows& own) {
  const auto token = Token::parse(job.token);
  if (!token)
    throw UserError("the ranks of the job have no token",
                    "start them with mtrain-launch and, on several hosts, --token_file");
  constexpr std::chrono::seconds kPatience{60};
  store::Store store({.host = job.master_addr,
                      .port = job.master_port,
                      .token = *token,
                      .round = job.restarts,
                      .job = job.name},
                     kPatience);
  store.put("doctor", job.rank, job.size, job.local_rank == 0 ? dump(rows_json(own), -1) : "");
  std::vector<HostRows> hosts;
  const std::vector<std::string> texts = store.all("doctor", job.size);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  store.put("doctor-clock", job.rank, job.size,
            job.local_rank == 0 ? fmt::format("{:.6f}", now.count()) : "");
  const std::vector<std::string> clocks = store.all("doctor-clock", job.size);
  for (const std::string& text : texts)
    if (!text.empty() && job.rank == 0) hosts.push_back(rows_of_json(text));
  add_clocks(hosts, clocks);
  return hosts;
}

void print_host(const HostRows& h) {
  constexpr auto left = TableColumn::Align::left;
  std::vector<std::vector<std::string>> rows;
  for (const DoctorRow& row : h.rows)
    rows.push_back({row.check,
                    std::string(row.verdict == Verdict::ok      ? "ok"
                                : row.verdict == Verdict::fault ? "FAULT"
                                                                : "warning"),
                    row.value, row.hint});
  std::fputs(fmt::format("{}\n", h.host).c_str(), stdout);
  std::fputs(
      text_table({{"check", 8, left}, {"verdict", 7, left}, {"value", 8, left}, {"hint", 6, left}},
                 rows, isatty(STDOUT_FILENO) ? line_width(STDOUT_FILENO) : 0)
          .c_str(),
      stdout);
}

void show_doctor(DoctorCommandOptions o) {
  o.examined.run_dir = o.run_dir;
  const launch::Job job = launch::started_job_from_environment();
  if (o.hosts && !job.launched)
    throw UserError("--hosts examines the hosts of a job, and no launcher has started one",
                    "mtrain-launch --nnodes=2 --node_rank=0 --master_addr=node0 mtrain doctor "
                    "--hosts, on each host with its own --node_rank");
  if (job.local_size > 1) o.examined.ranks = job.local_size;
  HostRows own{.host = host_name(), .rows = {}};
  if (job.local_rank == 0) {
    own.rows = run::examine_host(o.examined);
    for (DoctorRow& row : library_rows()) own.rows.push_back(std::move(row));
  }
  std::vector<HostRows> hosts;
  if (o.hosts && job.size > 1)
    hosts = rows_of_all_hosts(job, own);
  else if (job.local_rank == 0)
    hosts.push_back(own);
  if (o.json) {
    ordered_json all = ordered_json::array();
    for (const HostRows& h : hosts) all.push_back(rows_json(h));
    if (!hosts.empty()) std::fputs((dump(all, 2) + "\n").c_str(), stdout);
  } else {
    for (const HostRows& h : hosts) print_host(h);
  }
  std::fflush(stdout);
  std::string faults;
  for (const HostRows& h : hosts)
    for (const DoctorRow& row : h.rows)
      if (row.verdict == Verdict::fault)
        faults += fmt::format("{}{}: {}", faults.empty() ? "" : "; ", h.host, row.check);
  if (!faults.empty()) throw RunError("faults: " + faults);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  auto o = std::make_shared<DoctorCommandOptions>();
  auto* command = app.add_subcommand(
      "doctor",
      "examine this host: cores, GEMMs, memory, disk, limits, clock, links, GPUs, libraries; exit "
      "code 1 if something is broken");
  set_examples(*command, {"mtrain doctor", "mtrain doctor --run-dir runs/first --ranks 8",
                          "mtrain-launch --nproc_per_node=2 mtrain doctor --hosts"});
  command
      ->add_option("--run-dir", o->run_dir,
                   "the folder of runs, whose disk is examined; it need not exist")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_option("--ranks", o->examined.ranks, "ranks that this host shall have")
      ->check(integer_from(int64_t{1}, int64_t{4096}).description(""))
      ->capture_default_str()
      ->type_name("N");
  command->add_flag("--hosts", o->hosts,
                    "under a launcher: examine every host of the job, and print all on rank 0");
  command->add_flag("--json", o->json, "print JSON");
  command->callback([o] { show_doctor(*o); });
}

}  // namespace mtrain
