// Holds a run to the data that it began with, by what they hold: the spelling of a path may change,
// and so may the folder.
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
  // Reads samples of training and validation data, and the tokenizer if there is one. Of model.from
  // it reads the configuration and the tensors' names and sizes, if the folder is there.
  explicit DataIdentity(const RunPlan& plan);
  ~DataIdentity();
  DataIdentity(const DataIdentity&) = delete;
  DataIdentity& operator=(const DataIdentity&) = delete;

  // Returns one hash of the samples of training and validation data, by which ranks compare them.
  std::string sampled() const;

  // Compares with what a checkpoint says. Returns a line for each recipe field whose data are
  // others, as plan::resume_differences() does.
  std::string differences(const storage::TrainState& saved);
  // Whether the checkpoint says which training data it was made of.
  static bool is_in(const storage::TrainState& saved);

  // Begins to read the files whose whole hash nobody knows, slowly and in the background.
  void read_rest();
  // Throws RunError if that has found other data than those of the checkpoint. Takes no time.
  void require_same() const;
  // Puts what is known so far into the state of a checkpoint.
  void save(storage::TrainState& state) const;

 private:
  // Data sets that stand under one field of the recipe.
  struct Field {
    const char* name;                // in the recipe
    std::vector<std::string> paths;  // as the recipe spells them
    std::vector<data::Content> sets;
    std::vector<data::Content> saved = {};  // those of the checkpoint
  };
  static std::string print(const Field& field);
  static std::string difference(const Field& field);
  void read_files(std::vector<data::FileContent*> files);

  mutable std::mutex mutex_;  // guards the hashes of whole files
  std::vector<Field> fields_;
  // Entries of the checkpoint about what is gone by now, by their keys.
  std::map<std::string, std::string> carried_;
  std::atomic<bool> stop_ = false, differ_ = false;
  std::thread reader_;
};

}  // namespace mtrain::run
