// Holds what ranks see against each other: ranks that see different files would train nonsense, or
// wait for each other for ever.
#pragma once
#include <string>

#include "comm/host_collectives.h"
#include "data/dataset/dataset.h"

namespace mtrain::run {

// `own` describes something on this rank, and `what` names it. UserError on all ranks that names
// the first rank whose text differs from rank 0's. All ranks call it.
void require_same_on_all_ranks(const comm::HostCollectives& control, const std::string& what,
                               const std::string& own, const std::string& hint);

// Returns a text that tells data sets apart, without reading all of them.
std::string dataset_fingerprint(const data::Dataset& data);

}  // namespace mtrain::run
