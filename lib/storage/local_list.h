// Lists the parts in folders of local copies, for people.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/local_part.h"

namespace mtrain::storage {

struct ListedPart {
  // complete: all files have their sizes, and the small ones their content. unfinished: a save, or
  // the transfer of a replica, has not ended.
  enum class State { complete, damaged, unfinished };

  std::filesystem::path path;
  PartName name;
  int ranks = 0;  // of the job; 0: unknown, as in all that follows of a part without a description
  std::string host;  // of the rank that wrote it; another host has its replica
  State state = State::complete;
  std::string fault = {};  // of a damaged one
  int64_t saved_at = 0;    // seconds since 1970, when its newest file was written
  int64_t bytes = 0;       // of all its files
};

// Returns the parts in the folder of a run, in the order of steps, starts and ranks.
std::vector<ListedPart> listed_parts(const std::filesystem::path& folder);

// Returns the folders of runs that hold parts at `path`: checkpoint.local.dir, the folder of a host
// in it, or that of a run. Returns nothing if there are none.
std::vector<std::filesystem::path> folders_of_parts(const std::filesystem::path& path);

}  // namespace mtrain::storage
