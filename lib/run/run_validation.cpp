#include "run/run_validation.h"

#include "base/error.h"

namespace mtrain::run {

void RunValidation::open(const std::optional<storage::CheckpointRef>& start) {
  if (!data_) return;
  loader_.emplace(data_, agreed_validation_samples(trainer_, start),
                  data::LoaderOptions{.micro_batch = trainer_.plan().layout.micro_batch,
                                      .dp_rank = trainer_.data_parallel().rank(),
                                      .dp_size = trainer_.data_parallel().size()});
}

ValidationResult RunValidation::evaluate() {
  MT_CHECK(loader_, "an evaluation before its samples are known");
  result_ = {.loss = trainer_.evaluate(*loader_), .samples = loader_->samples()};
  step_ = trainer_.steps_done();
  return result_;
}

std::optional<ValidationResult> RunValidation::of_step(int64_t step) const {
  return step_ > 0 && step_ == step ? std::optional(result_) : std::nullopt;
}

}  // namespace mtrain::run
