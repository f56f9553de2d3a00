// The error of a save.
#pragma once
#include "base/error.h"

namespace mtrain::checkpoint {

// A checkpoint could not be written: the disk is full, ... All ranks throw it with the same
// message, after the same communication. The training is unchanged, and earlier checkpoints are
// intact.
class SaveError : public RunError {
 public:
  using RunError::RunError;
};

}  // namespace mtrain::checkpoint
