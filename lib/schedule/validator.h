// Proves a schedule's lists, or says what is wrong in them and where.
#pragma once
#include <string>
#include <vector>

#include "schedule/action.h"

namespace mtrain {

// Empty for lists that can be run. They are checked in this order, each part only where the ones
// before found nothing:
//  - numbers in range, every action on the rank of its stage;
//  - each stage and micro-batch once F, then B or I and W; a stage after those it depends on where
//    they share a rank;
//  - sends and receives, where there are any: each once, after and before their computations, and
//    from one rank to another received in the order in which they are sent;
//  - weights, where they are gathered and let go: present when used, gone at the end, and gradients
//    reduced once, after the last backward;
//  - at most `most_in_flight[rank]` chunks with activations (empty: not checked);
//  - no ranks that wait for each other, where a receive blocks and a send does not.
std::vector<std::string> schedule_faults(const Schedule& schedule,
                                         const std::vector<int64_t>& most_in_flight = {});

}  // namespace mtrain
