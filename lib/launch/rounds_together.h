// Starts of a job whose hosts act together: the launcher of host 0 leads (round_leader.h).
#pragma once
#include "launch/agent.h"
#include "launch/attempt.h"

namespace mtrain::launch {

// How the hook of a failure is called. The culprit may be a rank of another host.
JobFailure failure_of(const RoundCause& cause, const std::string& job_id);

// Does what run_agent() promises for AgentOptions::acts_together().
int run_rounds_together(const AgentOptions& options, JobState& job);

}  // namespace mtrain::launch
