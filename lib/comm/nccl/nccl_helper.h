// A deadline for calls of NCCL that may block forever.
#pragma once
#include <chrono>
#include <functional>
#include <optional>

#include "comm/nccl/nccl_api.h"

namespace mtrain::comm {

// Makes the call on a thread of its own. Returns its answer, or nothing if it has not returned by
// the deadline, or when `give_up` returned true, which is asked four times a second. The thread
// then continues by itself, so `call` must own what it uses. An exception of `call` becomes a
// failed answer.
std::optional<NcclAnswer> answer_within(std::chrono::steady_clock::time_point deadline,
                                        std::function<NcclAnswer()> call,
                                        const std::function<bool()>& give_up = {});

}  // namespace mtrain::comm
