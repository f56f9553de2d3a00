// The numbers of ranks with which a training can run. The layout of a job that loses and gains
// hosts keeps all its sizes except dp, and its global batch.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "apps/train_options.h"
#include "plan/machine.h"

namespace mtrain {

class ElasticWorlds {
 public:
  // Throws UserError with the mistakes of the recipe that do not depend on the number of ranks.
  ElasticWorlds(TrainOptions training, plan::Machine machine);

  int largest(int ranks);               // at most `ranks`; 0: none
  std::string nearest(int ranks);       // a sentence about the numbers around `ranks`
  std::string layout(int world) const;  // such as "dp_size 4"

 private:
  bool fits(int world);

  const TrainOptions training_;
  const plan::Machine machine_;
  int64_t ranks_of_replica_ = 1;  // tp * pp * cp
  int64_t samples_ = 1;           // micro-batches of a global batch
  std::map<int, bool> known_;
};

}  // namespace mtrain
