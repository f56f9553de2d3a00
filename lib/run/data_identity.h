// Ensures that a run continues with the data that it began with. It compares contents: the spelling
// of a path and the folder may change.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/dataset/content.h"
#include "plan/run_plan.h"
#include "storage/state.h"

namespace mtrain::run {

class DataIdentity {
 public:
  // Reads samples of training and validation data, and the tokenizer if there is one. From
  // model.from it reads the configuration and the tensors' names and sizes, if the folder exists.
  // If checkpoints have adapters alone, it also reads a few values of each tensor.
  explicit DataIdentity(const RunPlan& plan);
  ~DataIdentity();
  DataIdentity(const DataIdentity&) = delete;
  DataIdentity& operator=(const DataIdentity&) = delete;

  // Returns one hash of the samples of training and validation data, for comparison between ranks.
  std::string sampled() const;

  // Compares with the entries of a checkpoint. Returns a line for each recipe field whose data
  // differ, as plan::resume_differences() does.
  std::string differences(const storage::TrainState& saved);
  // Returns whether this run trains adapters of a base model that the checkpoint does not record.
  bool lacks_base(const storage::TrainState& saved) const;
  // Returns whether the checkpoint has an entry about its training data.
  static bool is_in(const storage::TrainState& saved);

  // Begins to read the files whose hash over the complete file is unknown, slowly and in the
  // background.
  void read_rest();
  // Throws RunError if that reading has found data that differ from the checkpoint's. Does not
  // wait.
  void require_same() const;
  // Writes the hashes that are known so far into the state of a checkpoint.
  void save(storage::TrainState& state) const;

 private:
  // The data sets of one field of the recipe.
  struct Field {
    const char* name;                // name of the field in the recipe
    std::vector<std::string> paths;  // as the recipe spells them
    std::vector<data::Content> sets;
    std::vector<data::Content> saved = {};  // the contents according to the checkpoint
  };
  static std::string print(const Field& field);
  static std::string difference(const Field& field);
  void read_files(std::vector<data::FileContent*> files);

  mutable std::mutex mutex_;  // guards the hashes of complete files
  std::vector<Field> fields_;
  // The content of the base model's weights; empty unless checkpoints have adapters alone.
  std::string base_, base_from_;
  // Entries of the checkpoint about files that may no longer exist, by their keys.
  std::map<std::string, std::string> carried_;
  std::atomic<bool> stop_ = false, differ_ = false;
  std::thread reader_;
};

}  // namespace mtrain::run
