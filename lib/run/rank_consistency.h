// Checks that all ranks see the same files, and plan for the same GPU. Ranks that do not would
// train on nonsense, or wait for each other for ever.
#pragma once
#include <string>

#include "comm/host_collectives.h"
#include "data/dataset/dataset.h"
#include "plan/run_plan.h"

namespace mtrain::run {

// `own` describes something that this rank sees, and `what` names that thing. An empty text is that
// of a rank which has not looked; rank 0 has one. If the texts differ,
// throws UserError on all ranks, which names the first rank whose text differs from rank 0's. All
// ranks call it.
void require_same_on_all_ranks(const comm::HostCollectives& control, const std::string& what,
                               const std::string& own, const std::string& hint);

// Throws UserError on all ranks if the plans of two order the exchanges of paired passes by
// different costs, as they do on hosts with different GPUs unless the recipe gives hardware.gpu.
// All ranks call it.
void require_same_exchange_order(const comm::HostCollectives& control, const RunPlan& plan);

// Returns a text by which data sets can be told apart. Reads the first and the last sample alone.
std::string dataset_fingerprint(const data::Dataset& data);

}  // namespace mtrain::run
