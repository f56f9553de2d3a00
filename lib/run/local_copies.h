// The local copies of a run (checkpoint.local): where they are, which of them the run continues
// from, and when they are written. Whatever fails here is a warning, and the run continues.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/pulse.h"
#include "checkpoint/local_saver.h"
#include "checkpoint/ranks_together.h"
#include "comm/file_exchange.h"
#include "plan/options/train_options.h"
#include "run/chosen_start.h"
#include "run/local_choice.h"
#include "run/local_need.h"
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

// All ranks make one object, and call its functions alike.
class LocalCopies {
 public:
  // Makes the folder of each host, and removes nothing. `continues`, on rank 0: the run continues
  // the one in its folder.
  LocalCopies(train::Trainer& trainer, std::shared_ptr<Pulse> pulse, bool continues);
  ~LocalCopies();  // also removes the checkpoint that was made for the start

  // The newest step wins: makes the start that of a local copy if all of its parts exist, and it is
  // newer.
  void improve(ChosenStart& start);
  // Replaces the copy of the start, whose damage showed when it was loaded: by the same one if all
  // bytes are right when they are read again, or by an older copy, or by the checkpoint of the
  // start. If there is none, removes the damaged copy, and throws the damage.
  void leave(ChosenStart& start, const storage::DamagedCheckpoint& damage);
  // Removes what this start does not need: older copies, damaged ones, and leftovers of killed
  // processes and of dead jobs. Call it when all ranks have read the start, and the run has it.
  void accept_start();
  // Records in the run folder that these copies are those of its run. If none are made, no later
  // start may use the copies of earlier ones. Only rank 0 calls it.
  void record() const;

  // Makes the memory for copies. Returns a text for the banner.
  // Only rank 0 has a reporter.
  std::string prepare(Reporter* reporter);
  // Copies this step. Waits until the copy before is complete. `staged`, which may be null, is a
  // copy of this step in memory.
  void save(const RunSave& save, std::shared_ptr<const checkpoint::Snapshot> staged = {});
  // Waits until no copy reads a `staged` memory.
  void release_staged();
  // Waits for the last copy. `saved`: a checkpoint has the same step, so the copies are removed.
  void end(bool saved);

  bool on() const { return off_.empty(); }

 private:
  // Returns a checkpoint of the newest copy after step `after`, in a folder of this host.
  std::optional<storage::CheckpointRef> find_start(int64_t after);
  void find_hosts();
  void make_folder();
  void open_server();
  std::vector<LocalNeed> needs(const checkpoint::CheckpointParts& parts) const;
  std::vector<storage::LocalPart> sound_parts() const;
  std::vector<storage::LocalPart> provided(const LocalChoice& choice) const;
  bool find_damage(const LocalChoice& choice);
  void distrust(const CopyId& copy);
  void remove_damaged() const;
  void remove_start_folder() const;
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
  const std::shared_ptr<Pulse> pulse_;
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
  CopyId left_;                    // of the last copy that was damaged when it was loaded
  std::set<std::string> damaged_;  // names of parts of this host, on its first rank
  std::string off_;                // why no copies are made; empty if they are
  int64_t failures_ = 0;           // copies that were not complete
  std::optional<checkpoint::LocalSaver> saver_;
};

}  // namespace mtrain::run
