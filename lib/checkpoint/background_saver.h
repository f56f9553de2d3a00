// Saves a training while it continues. Each rank copies what it writes into host memory, and a
// thread writes the copy. These threads take part in no collective: they exchange texts through a
// mailbox.
#pragma once
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save_steps.h"
#include "checkpoint/snapshot.h"
#include "comm/mailbox.h"

namespace mtrain::checkpoint {

// One save at a time. All ranks make one object, and call begin() and take() alike. The files, the
// errors and the exceptions are those of save_checkpoint().
class BackgroundSaver {
 public:
  // Makes the memory for the copy; throws RunError if there is too little. `mailbox` is this rank's
  // end of the job's.
  BackgroundSaver(Device& device, const CheckpointParts& parts,
                  std::shared_ptr<comm::Mailbox> mailbox);
  ~BackgroundSaver();  // gives up a save that is not complete, and waits for its thread
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Enqueues the copies, and begins to write. No save may be in progress. `options.on_commit` and
  // the steps of `options.added` are called from the thread. Returns the event that the next update
  // must wait for.
  Event begin(const CheckpointParts& parts, const TrainProgress& progress, SaveOptions options);
  bool saving() const { return saving_; }  // between begin() and take(); the same on all ranks
  // The copy that the last begin() has made. Others may read it, too, until the next begin().
  std::shared_ptr<const Snapshot> staged() const { return snapshot_; }

  // Whether the result of the save is known, for which it waits at most `longest`. Only rank 0
  // knows it; on other ranks it is false, without a wait. Rethrows what has ended this rank's
  // thread, unless it is an error of files.
  bool ended(std::chrono::milliseconds longest = {});

  struct Saved {
    std::filesystem::path checkpoint;  // on rank 0; else empty
    double seconds = 0;  // on rank 0, from the end of the copies to that of the commit
  };
  // Returns the result. All ranks call it after ended() is true on rank 0. Throws SaveError on all
  // ranks.
  Saved take();

  int64_t staged_bytes() const { return own_bytes_; }   // what this rank writes
  int64_t total_bytes() const { return total_bytes_; }  // what all ranks write
  int64_t written_bytes() const { return written_; }    // by this rank, of the save in progress
  // On rank 0: whether the save in progress has come to `options.added`.
  bool adding_files() const { return adding_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {          // of a save
    int64_t number = 0;  // of the save, from 1: a step may be saved twice
    std::filesystem::path folder;
    SavedState state;
    int io_threads = 1;
    SaveOptions options;
  };
  struct Result {
    Saved saved;
    std::string error;           // print_error() of an error of files; empty if there is none
    std::exception_ptr failure;  // any other
  };
  Result run(const Work& work);
  void write(const Work& work, Result& result);
  void write_part(const Work& work);
  void add_files(const Work& work, bool saved);
  // Writes this rank's files, and returns them as shards_text(). Sets the time at which the copies
  // were complete.
  std::string write_own(const Work& work, Clock::time_point& began);
  // Returns print_error() of an error of a rank.
  std::string of_rank(int rank, const std::string& error) const;
  static void moment(const Work& work, std::string_view name);  // calls options.on_commit
  void send_to_all(const Work& work, const char* what, const std::string& text);
  void report(const Work& work, const std::string& about, const std::string& text);
  std::string take_reports(const Work& work, const std::string& about,
                           std::vector<std::string>& reports);
  std::string await_text(const std::string& key);  // waits for a text of another rank's thread
  static std::string key(const Work& work, const std::string& what);
  void pause(std::chrono::milliseconds time) const;  // ends the thread if the save is given up
  void go_on() const { pause(std::chrono::milliseconds(0)); }

  const int rank_, ranks_;
  const comm::HostCollectives& control_;
  const std::shared_ptr<comm::Mailbox> mailbox_;
  int64_t own_bytes_, total_bytes_;
  const std::shared_ptr<Snapshot> snapshot_;
  bool saving_ = false;
  int64_t saves_ = 0;
  std::vector<std::string> first_keys_;  // of rank 0's texts to all, in the save in progress
  std::atomic<int64_t> written_ = 0;
  std::atomic<bool> adding_ = false;
  std::atomic<bool> give_up_ = false;
  std::future<Result> pending_;
  std::optional<Result> result_;
};

}  // namespace mtrain::checkpoint
