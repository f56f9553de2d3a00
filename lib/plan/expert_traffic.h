// How many rows tokens have for their experts, and how many bytes of them a rank sends in a step:
// over ep, and over tp where its ranks divide experts and have other tokens each.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::plan {

struct RunPlan;

// Whether each layer of a stage has experts.
std::vector<bool> experts_of_stage(const RunPlan& plan, int64_t stage);
// Rows of experts for each token: its experts, or more where these are filled up to a capacity.
double expert_rows_per_token(const RunPlan& plan);
// The ranks of ep among which a token's experts are, on average over random choices.
double expert_ranks_per_token(const RunPlan& plan);
// Bytes that a rank sends when a micro-batch's rows of one layer travel to their experts or back.
double expert_bytes_one_way(const RunPlan& plan);
// The largest of all pipeline ranks, if experts' loads are balanced.
double expert_bytes_per_step(const RunPlan& plan);

}  // namespace mtrain::plan
