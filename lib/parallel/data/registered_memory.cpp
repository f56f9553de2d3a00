#include "parallel/data/registered_memory.h"

#include <utility>

#include "base/log.h"

namespace mtrain::parallel {

Tensor RegisteredMemory::operator()(const model::ParamUnit& unit, int64_t count, DType dtype) {
  const Group& owners = groups_->of(unit).gather;
  const Tensor t = owners.registered(*home_, {count}, dtype, category_, symmetric_);
  if (!t && count > 0 && owners.size() > 1 && groups_->rank == 0 && !std::exchange(warned_, true))
    log::warn(
        "ddp.nccl_ub has no effect: this NCCL registers no windows, which NCCL 2.27 does (2.28 "
        "with copy engines); parameters are gathered into ordinary memory");
  return t;
}

}  // namespace mtrain::parallel
