// Messages of a pipeline take longer beside computations of their sender.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "schedule/simulator.h"

namespace mtrain::predict {

// The last parts of a message's time: its sender's work, and then the time until the receiver
// continues. Before, the message may wait for a link.
struct MessageWork {
  double work_s = 0, after_s = 0;
};

// Returns ScheduleCosts::message_delays. The work of a message takes 1 + `more` times as long
// beside computations of its sender (longer_beside()), which a timeline without these delays shows.
// A message for which both ends wait has none beside it. `messages` are by sender and receiver.
// `computing` has for each rank and action the share of its time in which it computes; in the rest
// it waits.
std::vector<std::vector<double>> message_delays(
    const schedule::Schedule& schedule, const schedule::Timeline& timeline,
    const std::map<std::pair<int64_t, int64_t>, MessageWork>& messages,
    const std::vector<std::vector<double>>& computing, double more);

// Returns the same delays by the actions that receive the messages.
std::vector<std::vector<double>> delays_of_receives(const schedule::Schedule& schedule,
                                                    const std::vector<std::vector<double>>& delays);

}  // namespace mtrain::predict
