// A trained model in memory, with its cache, for generation.
#pragma once
#include <memory>

#include "base/dtype.h"
#include "comm/world.h"
#include "generate/cached_model.h"
#include "launch/job.h"
#include "run/stored_model.h"

namespace mtrain::run {

class LoadedModel {
 public:
  // Reads the weights. The cache has room for `slots` texts of `positions` tokens. `world` and
  // `stored` must outlive this object.
  LoadedModel(comm::World& world, const launch::Job& job, const StoredModel& stored, DType dtype,
              int64_t slots, int64_t positions);
  ~LoadedModel();

  generate::CachedModel& cached();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtrain::run
