#include "optim/write_weights.h"

namespace mtrain {

void write_weights(ParamStore& params, DataParallel& data_parallel, Float8Scaling* fp8,
                   const std::function<void()>& write) {
  data_parallel.before_update();
  write();
  for (ParamUnit* unit : params.units()) data_parallel.updated(*unit);
  if (fp8) fp8->weights_changed();
}

}  // namespace mtrain
