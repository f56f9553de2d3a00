// The folders in which checkpoints are written before they get their names, and into which they are
// renamed before they are deleted.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mtrain::storage {

// The start that writes a checkpoint: a launcher's id of the job, and how often it has restarted
// the job. Without a launcher the id is empty.
struct SavingJob {
  std::string id;
  int attempt = 0;
};

// Returns `<root>/step-00000120.tmp-<pid>-<host>`, followed by `+<job>+<attempt>` if there is a
// job, and by `ending`.
std::filesystem::path temporary_checkpoint(const std::filesystem::path& root, int64_t step,
                                           const SavingJob& job, const char* ending = "");
inline constexpr const char* kReplaced = ".old";  // ends the name of a folder that is being deleted

// Whether this is the name of such a folder.
bool is_temporary_checkpoint(const std::string& name);

// Returns the temporary folders in `root` that nobody writes any more: those of dead processes of
// this host, those of earlier attempts of the same job, and those of other jobs and hosts that were
// not renewed for 10 minutes (FolderLease).
std::vector<std::filesystem::path> stale_temporaries(const std::filesystem::path& root,
                                                     const SavingJob& job);

// The names of checkpoints: "step-00000120". parse_step() returns -1 for other names; their folders
// are never touched.
std::string step_name(int64_t step);
int64_t parse_step(std::string_view name);

}  // namespace mtrain::storage
