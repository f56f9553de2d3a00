// Chooses the step of the local copies from which a run continues.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/local_part.h"

namespace mtrain::run {

// A part that a host has.
struct HostPart {
  storage::PartName name;
  int ranks = 1;  // of the job that wrote it
};
std::string host_parts_text(const std::vector<HostPart>& parts);
std::vector<HostPart> parse_host_parts(const std::string& text);

// A copy is identified by its step and the start that wrote it.
using CopyId = std::pair<int64_t, std::string>;

struct LocalChoice {
  CopyId id;
  std::vector<int> host_of;  // for each rank of that job, the first host that has its part
};

// Returns the newest step after `after` of which some host has the part of each rank; of copies of
// the same step, the one of the latest start. Leaves out those of `refused`.
std::optional<LocalChoice> newest_copy(const std::vector<std::vector<HostPart>>& hosts,
                                       int64_t after, const std::set<CopyId>& refused = {});

// The ranks of a copy in the order in which host `own` of `hosts` gets their parts: first those of
// the host after it. Hosts therefore do not all ask the same one. `host_of` is that of the choice.
std::vector<int> fetch_order(const std::vector<int>& host_of, int own, int hosts);

// For each rank, the ranks that get its part: the ranks with the same number on the next
// `replicas` hosts, or on all others if there are fewer. `hosts` has the name of each rank's host.
std::vector<std::vector<int>> replica_ranks(const std::vector<std::string>& hosts, int replicas);

}  // namespace mtrain::run
