// Ranks that see different files would train nonsense, or wait for each other for ever.
#pragma once
#include <string>

#include "comm/host_collectives.h"
#include "data/dataset.h"

namespace mtrain {

// UserError on all ranks, naming the first that has another `own` than rank 0; `what` says what it
// describes. All ranks call it.
void agree(const HostCollectives& control, const std::string& what, const std::string& own,
           const std::string& hint);

// What tells data sets apart without reading all of them.
std::string describe(const Dataset& data);

}  // namespace mtrain
