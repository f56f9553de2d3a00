// The validation of a run: which samples it has, and its last result.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "data/dataset/batch.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "train/trainer.h"

namespace mtrain::run {

class RunValidation {
 public:
  // `data` is null if the run has none.
  RunValidation(train::Trainer& trainer, std::shared_ptr<const data::Dataset> data)
      : trainer_(trainer), data_(std::move(data)) {}

  const std::shared_ptr<const data::Dataset>& data() const { return data_; }
  explicit operator bool() const { return bool(data_); }

  // Chooses the samples. The run has loaded the checkpoint `start`, if there is one. All ranks must
  // call it, before they evaluate.
  void open(const std::optional<storage::CheckpointRef>& start);
  int64_t samples() const { return loader_ ? loader_->samples() : 0; }  // 0 without validation

  // Evaluates the weights, and returns the result. All ranks must call it.
  ValidationResult evaluate();
  // Returns the result for the weights after this step, if they were evaluated.
  std::optional<ValidationResult> of_step(int64_t step) const;

 private:
  train::Trainer& trainer_;
  const std::shared_ptr<const data::Dataset> data_;
  std::optional<data::ValidationLoader> loader_;
  int64_t step_ = 0;  // of the result; 0: none
  ValidationResult result_;
};

}  // namespace mtrain::run
