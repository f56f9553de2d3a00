#include "model/param/write_weights.h"

namespace mtrain::model {

void write_weights(ParamStore& params, DataParallel& data_parallel, Quantizer* quantizer,
                   const std::function<void()>& write) {
  data_parallel.before_update();
  write();
  for (ParamUnit* unit : params.units()) data_parallel.updated(*unit);
  if (quantizer) quantizer->weights_changed();
}

}  // namespace mtrain::model
