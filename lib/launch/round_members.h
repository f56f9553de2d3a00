// What the launcher that leads a job knows of it, and which hosts and ranks a round has.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/launcher_notes.h"

namespace mtrain::launch {

struct LeaderOptions {
  int min_nodes = 1, max_nodes = 1;
  int max_restarts = 0;  // without a new checkpoint between them
  // The most ranks, at most `ranks`, with which the job can train; 0: none.
  std::function<int(int ranks)> largest_world;
  // Describes the layout of so many ranks, and the nearest numbers of ranks that can train.
  std::function<std::string(int world)> layout, nearest_worlds;
  // Returns its step; -1: there is none. Returns nothing if the folder cannot be read now.
  std::function<std::optional<int64_t>()> newest_checkpoint;
  std::chrono::milliseconds timeout{600000};  // how long a round waits for hosts
  int leader = 0;  // the number of the host whose launcher leads: rank 0 is there

  std::string job = {};  // its id, if its launchers have none in common; for ranks

  // For a job whose leader is elected. Whether this launcher still leads; null: it does.
  std::function<bool()> leads;
  // Records that a round begins; null: nothing is recorded. False: it must not begin now.
  std::function<bool(const RoundFacts&)> settle;
  std::function<std::string()> settle_fault;  // why it must not, for messages
  // Whether ranks of an earlier leader may still use the run folder; null: they do not.
  std::function<bool()> folder_held;

  bool elastic() const { return min_nodes < max_nodes; }
};

// Distributes the ranks over hosts that are alive, in the order of their nodes. A host with 0 ranks
// is a spare. Returns nothing if the job cannot train with these hosts.
std::vector<RoundMember> members_of_round(const std::vector<LauncherNote>& hosts,
                                          const LeaderOptions& options);

// Names a host in messages, and begins a line of the launcher.
std::string host_text(const LauncherNote& note);
std::string line_of(const std::string& text);

}  // namespace mtrain::launch
