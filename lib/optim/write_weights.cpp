#include "optim/write_weights.h"

namespace mtrain::optim {

void write_weights(model::ParamStore& params, model::DataParallel& data_parallel,
                   model::Quantizer* quantizer, const std::function<void()>& write) {
  data_parallel.before_update();
  write();
  for (model::ParamUnit* unit : params.units()) data_parallel.updated(*unit);
  if (quantizer) quantizer->weights_changed();
}

}  // namespace mtrain::optim
