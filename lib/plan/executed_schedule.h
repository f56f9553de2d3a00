// The lists of actions that a plan's pipeline runs, and how a simulation has to play them.
#pragma once
#include "plan/options/pipeline_options.h"
#include "schedule/lower.h"
#include "schedule/simulator.h"

namespace mtrain::plan {

struct RunPlan;

// How the executor lowers the computations of a schedule. Pipeline and simulations use it alike.
schedule::Lowering lowering_of(const PipelineOptions& options);

// Returns the lists of a flush that the ranks of a plan's pipeline run.
schedule::Schedule executed_schedule(const RunPlan& plan);

// Returns costs with the order of messages and gradients that the options decide, and with unit
// times: the caller fills in stages and links.
schedule::ScheduleCosts costs_in_order(const PipelineOptions& options);

}  // namespace mtrain::plan
