// The local copies of a run (checkpoint.local): where they are, which of them the run continues
// from, and when they are written. Whatever fails here is a warning, and the run continues.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/local_saver.h"
#include "checkpoint/ranks_together.h"
#include "comm/file_exchange.h"
#include "plan/options/train_options.h"
#include "run/chosen_start.h"
#include "run/local_choice.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "storage/damaged_checkpoint.h"
#include "storage/local_part.h"

namespace mtrain::run {

class Reporter;

// The local copies that belong to a run. The file local.txt in its folder has their name.
struct LocalRun {
  std::string name;      // of the run's folder on each host
  std::string replaced;  // the name of copies that no run continues from; empty if there are none
};
// Returns the name of the copies that the run may continue from, or a new name.
LocalRun local_run(const std::filesystem::path& run_dir, bool continues);
void write_local_run(const std::filesystem::path& run_dir, const LocalRun& run);
void remove_local_run(const std::filesystem::path& run_dir);  // if there is one

// The memory that local copies take on a host.
struct LocalNeed {
  std::string host;
  int64_t bytes = 0;  // of parts: two steps of the host's ranks, and of those it has replicas of
  int64_t available = -1;  // bytes of memory, if the folder is in memory; -1: unknown
};
// Returns why copies of this size are not made; empty if they are. `most` is
// checkpoint.local.max_gib in bytes; 0: no limit.
std::string refusal(const std::vector<LocalNeed>& hosts, int64_t most);

// All ranks make one object, and call its functions alike.
class LocalCopies {
 public:
  // Makes the folder of each host, and removes leftovers. `continues`, on rank 0: the run continues
  // the one in its folder.
  LocalCopies(train::Trainer& trainer, bool continues);
  ~LocalCopies();

  // The newest step wins: makes the start that of a local copy if all of its parts exist, and it is
  // newer.
  void improve(ChosenStart& start);
  // Goes back to the checkpoint of the start. Throws the damage if there is none.
  void leave(ChosenStart& start, const storage::DamagedCheckpoint& damage);
  // Removes the copies that this start does not need. Call it when the start was read.
  void release_start();
  // Records in the run folder that these copies are those of its run. If none are made, no later
  // start may use the copies of earlier ones. Only rank 0 calls it.
  void record() const;

  // Makes the memory for copies. Returns a text for the banner.
  // Only rank 0 has a reporter.
  std::string prepare(Reporter* reporter);
  // Copies this step. Waits until the copy before is complete.
  void save(const RunSave& save);
  // Waits for the last copy. `saved`: a checkpoint has the same step, so the copies are removed.
  void end(bool saved);

  bool on() const { return off_.empty(); }

 private:
  // Returns a checkpoint of the newest copy after step `after`, in a folder of this host.
  std::optional<storage::CheckpointRef> find_start(int64_t after);
  void find_hosts();
  void make_folder();
  void open_server();
  std::vector<LocalNeed> needs(int64_t own_bytes) const;
  std::vector<storage::LocalPart> sound_parts() const;
  std::vector<storage::LocalPart> provided(const LocalChoice& choice) const;
  bool drop_damaged(const LocalChoice& choice);
  storage::CheckpointRef assemble(const LocalChoice& choice);
  void gather_files(const LocalChoice& choice, const std::vector<storage::PartDescription>& parts,
                    const std::set<std::string>& read, const std::filesystem::path& folder);
  void turn_off(const std::string& reason);
  void finish();  // the copy that is being written
  // Runs `work` on the first rank of each host. Returns the error of the first host; all ranks get
  // the same.
  std::string on_hosts(const std::function<void()>& work);
  bool is_first() const { return first_of_[size_t(host_)] == control_.rank(); }

  train::Trainer& trainer_;
  const comm::HostCollectives& control_;
  const plan::LocalCopyOptions& options_;
  Reporter* reporter_ = nullptr;
  LocalRun run_;
  std::vector<std::string> host_names_;  // by rank
  std::vector<int> first_of_;            // the first rank of each host
  int host_ = 0;
  std::vector<checkpoint::LocalPeer> peers_;  // by rank; empty on one host
  comm::ProvenSocket::Options socket_;
  std::string start_;
  std::optional<storage::LocalFolder> folder_;
  std::unique_ptr<comm::FileServer> server_;
  CopyId from_;                    // of the copy from which the run starts
  std::set<std::string> damaged_;  // names of parts
  std::string off_;                // why no copies are made; empty if they are
  int64_t failures_ = 0;           // copies that were not complete
  std::optional<checkpoint::LocalSaver> saver_;
};

}  // namespace mtrain::run
