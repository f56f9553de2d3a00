// Calls of NCCL that may block without end, under a deadline.
#pragma once
#include <chrono>
#include <functional>
#include <optional>

#include "comm/nccl/nccl_api.h"

namespace mtrain::comm {

// Makes the call on a thread of its own. Returns its answer, or nothing where it has not returned
// by the deadline: the thread then goes on by itself, so `call` must own what it uses. What `call`
// throws becomes a failed answer.
std::optional<NcclAnswer> answer_within(std::chrono::steady_clock::time_point deadline,
                                        std::function<NcclAnswer()> call);

}  // namespace mtrain::comm
