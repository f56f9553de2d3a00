#include "model/data_parallel.h"

namespace mtrain::model {

Tensor own_master(DataParallel& data_parallel, ParamUnit& unit) {
  if (unit.own_master) return unit.own_master;
  // Without master weights the optimizer updates the bf16 values themselves.
  if (unit.own_value) return unit.own_value;
  data_parallel.before_forward(unit);  // compute waits for the gather of the values
  data_parallel.after_forward(unit);
  return unit.value;
}

Tensor full_master(DataParallel& data_parallel, ParamUnit& unit) {
  const Tensor own = own_master(data_parallel, unit);
  return own.count() == unit.count ? own : data_parallel.gather_unit(unit, own);
}

}  // namespace mtrain::model
