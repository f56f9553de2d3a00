// Copies of the training in folders of the hosts (storage/local_part.h), written while it
// continues. Each rank writes its own part, and may send it to other hosts.
#pragma once
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/save_steps.h"
#include "checkpoint/snapshot.h"
#include "comm/file_exchange.h"

namespace mtrain::checkpoint {

// A rank of another host, whose FileServer listens at this address.
struct LocalPeer {
  std::string host, address;
  uint16_t port = 0;
};

// One copy at a time. All ranks make one object, and call its functions alike.
class LocalSaver {
 public:
  struct Options {
    std::filesystem::path folder;  // of the run on this host
    std::string start;             // of storage::PartName
    bool first_of_host = true;     // this rank removes old parts of others, too
    std::vector<LocalPeer> peers;  // get this rank's part
    comm::ProvenSocket::Options socket;
    double bytes_per_s = 0;  // of what this rank sends; 0: no limit
    // Called in the thread before the rank writes; may be empty. Throws RunError.
    std::function<void(int64_t bytes)> admit;
    // Called in the thread after each part that was written or sent; may be empty.
    std::function<void()> wrote;
  };
  // Makes the memory for the copy; throws RunError if there is too little.
  LocalSaver(Device& device, const CheckpointParts& parts, Options options);
  ~LocalSaver();  // gives up a copy that is not complete
  LocalSaver(const LocalSaver&) = delete;
  LocalSaver& operator=(const LocalSaver&) = delete;

  struct Outcome {
    bool written = false;  // there was a copy, and it is complete on all ranks
    std::string error;     // of the first rank that could not write its part
    std::string not_sent;  // of the first rank that could not send it
  };
  // Waits until the copy that was begun has ended on all ranks.
  Outcome finish();
  // Enqueues the copies of this step, and begins to write. Call finish() before. Returns the event
  // that the next update must wait for. If there already is a copy of this step in memory,
  // `staged`, it writes from that: until finish(), nobody may stage another step there.
  Event begin(const CheckpointParts& parts, const TrainProgress& progress, SaveOptions options,
              std::shared_ptr<const Snapshot> staged = {});
  bool reads_staged() const { return writing_ && from_ != own_; }

  int64_t newest() const { return complete_; }  // the newest step of which all parts exist, or 0
  int64_t newest_with_replicas() const { return replicated_; }  // and all replicas; or 0
  int64_t staged_bytes() const { return own_bytes_; }

 private:
  struct Work {
    int64_t step = 0, complete = 0, replicated = 0;  // newest(), newest_with_replicas()
    int io_threads = 1;
    SavedState state;
    SaveOptions options;
  };
  struct Result {
    std::string error, not_sent;
    std::exception_ptr failure;
  };
  Result run(const Work& work);
  void write(const Work& work, Result& result);
  std::filesystem::path write_part(const Work& work);
  void remove_old(const Work& work) const;
  void send(const std::filesystem::path& part, const LocalPeer& peer);
  void not_sent(Result& result, const LocalPeer& peer, const std::string& why) const;
  void go_on() const;

  const comm::HostCollectives& control_;
  const Options options_;
  const int rank_;
  const int64_t own_bytes_;
  const std::shared_ptr<Snapshot> own_;
  std::shared_ptr<const Snapshot> from_;  // what is written: own_, or the one of another saver
  bool writing_ = false;
  int64_t step_ = 0, complete_ = 0, replicated_ = 0;
  std::atomic<bool> give_up_ = false;
  mutable std::atomic<int64_t> parts_ = 0;  // written or sent by the thread so far
  std::future<Result> pending_;             // the last member: its thread uses the others
};

// The index of the checkpoint that parts are together, and the hashes of its .sums files. `shards`
// has the shards_text() of each rank.
struct PartsIndex {
  storage::CheckpointIndex index;
  std::map<std::string, std::string> sums;
};
PartsIndex index_of_parts(const std::vector<std::string>& shards);
// Writes index.json into `folder`, which has the files of all parts. Throws RunError if they are
// not a full checkpoint.
void write_parts_index(const std::filesystem::path& folder, int64_t step, const PartsIndex& parts);

}  // namespace mtrain::checkpoint
