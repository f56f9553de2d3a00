// Counts the rows that experts compute for each token, and the bytes of rows that a rank sends in a
// step. Rows travel over ep. They also travel over tp if its ranks divide each expert and have
// different tokens.
#pragma once
#include <cstdint>
#include <vector>

namespace mtrain::plan {

struct RunPlan;

// Whether each layer of a stage has experts.
std::vector<bool> experts_of_stage(const RunPlan& plan, int64_t stage);
// Rows that experts compute per token: top-k. If experts are padded to a capacity, it is the
// capacity of all experts over the number of tokens.
double expert_rows_per_token(const RunPlan& plan);
// The number of ep ranks that have experts of one token, on average over random choices.
double expert_ranks_per_token(const RunPlan& plan);
// Bytes that a rank sends when the rows of one layer and micro-batch travel to their experts, or
// back.
double expert_bytes_one_way(const RunPlan& plan);
// Bytes that a rank sends in a step if the experts' loads are balanced; the largest of all pipeline
// ranks.
double expert_bytes_per_step(const RunPlan& plan);

}  // namespace mtrain::plan
