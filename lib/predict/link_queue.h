// The emulated link of a rank, which carries the data of all its streams one after the other.
#pragma once
#include <vector>

#include "predict/replay.h"

namespace mtrain::predict {

// Returns for each item how many seconds its data wait for other data on the link, as in
// comm::EmulatedLink: the data of a collective take their place when its rank has worked on it, and
// a message when it is ready. Packets wait only for each other. Empty: no launch uses the link.
//
// The streams are run in the order of time, as the place of data depends on it. What computations
// and communication cost each other and waits for later ranks are left out: data that are ready
// later in a replay wait as long as here.
std::vector<double> link_waits(const LaunchSequence& sequence, const LaunchPrices& prices);

}  // namespace mtrain::predict
