// Decides whether a run writes its checkpoints while it trains (checkpoint.async).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/host_collectives.h"
#include "plan/options/train_options.h"

namespace mtrain::run {

struct AsyncChoice {
  bool on = false;
  std::string text;  // for the banner; empty if no checkpoint is saved before the end
};

// `staged` is the memory that copies of what this rank writes take, and `comes` what the rank will
// still allocate of its host's memory to train. Ranks of a host share it. All ranks must call it,
// and get the same choice. Throws UserError on all ranks if the recipe demands what a host has too
// little memory for.
AsyncChoice choose_async(const comm::HostCollectives& control, const plan::CheckpointOptions& asked,
                         int64_t staged, int64_t comes);

// The memory of the ranks of one host.
struct HostNeed {
  std::string host;
  int64_t ranks = 0;
  int64_t needs = 0;         // bytes of copies
  int64_t comes = 0;         // bytes that training will still allocate
  bool writes_form = false;  // ... together with writing the Hugging Face form of checkpoints
  int64_t available = -1;    // bytes; -1: unknown
  // A tenth is left to others.
  bool suffices() const {
    return available < 0 || double(needs + comes) <= 0.9 * double(available);
  }
};
// Describes the memory in which the ranks of a host write the Hugging Face form of a checkpoint.
std::string form_text(int64_t ranks);

// Decides by the hosts of a job.
AsyncChoice choose_async(plan::CheckpointOptions::Async asked, const std::vector<HostNeed>& hosts);

}  // namespace mtrain::run
