#include "ops/launch_spans.h"

#include <algorithm>

#include "base/error.h"
#include "device/allocator.h"

namespace mtrain::ops {

void add_access(std::vector<device::Access>& list, const char* launch, const ConstSpan& span,
                bool partial) {
  if (!span.owner) {
    MT_CHECK(!span.data, "`{}`: no allocation owns the memory of an operand", launch);
    return;
  }
  const auto end = [](const device::Access& a) {
    return static_cast<const char*>(a.data) + a.bytes;
  };
  const device::Access access{span.data, span.bytes(),
                              static_cast<device::Storage*>(span.owner)->shared_from_this(),
                              span.dtype, partial};
  const bool known = std::ranges::any_of(list, [&](const device::Access& a) {
    return access.bytes > 0 && a.storage == access.storage && a.partial == partial &&
           a.data <= access.data && end(access) <= end(a);
  });
  if (!known) list.push_back(access);
}

}  // namespace mtrain::ops
