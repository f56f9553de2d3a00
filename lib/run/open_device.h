// Opens a rank's device, and its connection to the other ranks, according to the plan.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>

#include "comm/process/process_world.h"
#include "device/device.h"
#include "launch/job.h"
#include "plan/meeting_plan.h"

namespace mtrain::run {

// Opens the GPU whose index is the rank's index on its host, or a CPU device with the rank's share
// of the host's cores.
std::unique_ptr<Device> open_device(const plan::DevicePlan& plan, const launch::Job& job);

// Returns the possible sources of the job's token. `shared` is the file through which rank 0 passes
// it to ranks that have neither MTRAIN_TOKEN nor --token_file.
comm::TokenSource token_source(const launch::Job& job, const std::filesystem::path& shared);
// Returns `shared` for a job that uses a model without training it. The file name contains the
// job's port, since other jobs may use the model at the same time.
std::filesystem::path token_file_beside(const std::filesystem::path& model, const launch::Job& job);

// Returns when all ranks are connected. Throws UserError if another rank has a different recipe.
// `waiting`, which may be empty, is called as described in comm::ProcessWorldOptions.
comm::World open_world(const plan::MeetingPlan& plan, const launch::Job& job,
                       comm::TokenSource token,
                       std::function<void(const std::string&)> waiting = {});

}  // namespace mtrain::run
