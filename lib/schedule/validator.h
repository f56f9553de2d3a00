// Proves a schedule's lists, or reports their faults and where these are.
#pragma once
#include <string>
#include <vector>

#include "schedule/action.h"

namespace mtrain::schedule {

// Returns the faults of the lists; none if they can be run. It checks these points in their order,
// and a point only if the earlier ones found nothing:
//  - Numbers are in range, and every action is on the rank of its stage.
//  - Each stage runs each micro-batch once: F, then B or I and W. A stage comes after those that it
//    depends on and that share its rank.
//  - Each send comes once, after its computation, and each receive once, before its computation.
//  - A rank receives another rank's messages in the order in which they are sent.
//  - Sharded weights are gathered when they are used, and freed at the end.
//  - Gradients of sharded weights are reduced once, after the last backward.
//  - At most `max_in_flight[rank]` chunks have activations (not checked if empty).
//  - No ranks wait for each other, if receives block and sends do not.
std::vector<std::string> schedule_faults(const Schedule& schedule,
                                         const std::vector<int64_t>& max_in_flight = {});

}  // namespace mtrain::schedule
