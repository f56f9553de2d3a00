#include "run/folder_probe.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "storage/probe_file.h"

namespace mtrain::run {

void require_shared_folder(const comm::HostCollectives& control, const launch::Job& job,
                           const std::filesystem::path& folder,
                           std::chrono::milliseconds patience) {
  if (control.size() == 1) return;
  std::optional<storage::ProbeFile> probe;
  if (control.rank() == 0) probe.emplace(folder);
  const std::vector<std::string> sent =
      split(control.texts(probe ? probe->name() + " " + probe->content() : "").front(), ' ');
  MT_CHECK(sent.size() == 2, "{} words", sent.size());
  const bool reads = job.local_rank == 0 && control.rank() != 0;
  const bool blind = reads && !storage::sees_probe(folder, sent[0], sent[1], patience);
  const std::vector<std::string> hosts = control.texts(blind ? host_name() : "");
  std::string names;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (!hosts[rank].empty())
      names += fmt::format("{}{} (rank {})", names.empty() ? "" : ", ", hosts[rank], rank);
  if (names.empty()) return;
  throw UserError(
      fmt::format("checkpoint.dir: a file that rank 0 has written to {} did not appear within {} s "
                  "on {}",
                  folder.string(),
                  std::chrono::duration_cast<std::chrono::seconds>(patience).count(), names),
      "give a folder that all hosts share, with the same path on each");
}

std::chrono::milliseconds patience_for_files(double comm_timeout_s) {
  constexpr double kMost = 60;
  return std::chrono::milliseconds(int64_t(1e3 * std::min(kMost, comm_timeout_s / 2)));
}

}  // namespace mtrain::run
