// Checks before training that every host sees the folder of checkpoints.
#pragma once
#include <chrono>
#include <filesystem>

#include "comm/host_collectives.h"
#include "launch/job.h"

namespace mtrain::run {

// Rank 0 writes a file with a random name and content into the folder, and the first rank of each
// other host reads it. Network file systems may show it late: ranks wait up to `patience`. Throws
// UserError on all ranks, which names the ranks and hosts that do not see the file. All ranks must
// call it, with the folder on disk.
void require_shared_folder(const comm::HostCollectives& control, const launch::Job& job,
                           const std::filesystem::path& folder, std::chrono::milliseconds patience);

// Returns how long ranks wait for files of another host: 60 s, but less than half of the timeout of
// communication, since the others wait meanwhile.
std::chrono::milliseconds patience_for_files(double comm_timeout_s);

}  // namespace mtrain::run
