// Checks that all ranks read the same files, and plan for the same GPU. Otherwise they would train
// on inconsistent data, or wait for each other forever.
#pragma once
#include <string>

#include "comm/host_collectives.h"
#include "data/dataset/dataset.h"
#include "plan/run_plan.h"

namespace mtrain::run {

// `own` describes a thing that this rank has read, and `what` is its name. A rank that has not read
// it passes an empty text; rank 0 must pass a text. If the texts differ, throws UserError on all
// ranks. It names the first rank whose text differs from rank 0's. All ranks must call it.
void require_same_on_all_ranks(const comm::HostCollectives& control, const std::string& what,
                               const std::string& own, const std::string& hint);

// Throws UserError on all ranks if two plans order the exchanges of paired passes by different
// costs. This happens on hosts with different GPUs unless the recipe gives hardware.gpu. All ranks
// must call it.
void require_same_exchange_order(const comm::HostCollectives& control, const RunPlan& plan);

// Returns a text that distinguishes data sets. Reads only the first and the last sample.
std::string dataset_fingerprint(const data::Dataset& data);

}  // namespace mtrain::run
