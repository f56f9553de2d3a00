#include "optim/write_weights.h"

namespace mtrain::optim {

void write_weights(model::ParamStore& params, model::DataParallel& data_parallel,
                   model::Float8Scaling* fp8, const std::function<void()>& write) {
  data_parallel.before_update();
  write();
  for (model::ParamUnit* unit : params.units()) data_parallel.updated(*unit);
  if (fp8) fp8->weights_changed();
}

}  // namespace mtrain::optim
