// Collectives over the connections of a group, by gloo.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "comm/failure_reporter.h"
#include "comm/gloo/gloo_mesh.h"

namespace mtrain::comm {

// Large data goes around a ring; small data goes directly to all peers. An all_reduce gives all
// ranks the same bits. Small sums, and sums of bf16 and f16, are formed in the order of the ranks
// and rounded once.
std::unique_ptr<Communicator> gloo_communicator(std::unique_ptr<GlooMesh> mesh,
                                                std::unique_ptr<FailureReporter> reporter,
                                                std::chrono::nanoseconds timeout);

}  // namespace mtrain::comm
