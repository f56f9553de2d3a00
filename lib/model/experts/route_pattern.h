// Choices of experts by a pattern that no weight changes, for benchmarks: they cost what choices of
// such loads cost, whatever the router has learned.
//
// T tokens, E experts, K experts of a token
#pragma once
#include <cstdint>
#include <vector>

#include "base/route_pattern.h"

namespace mtrain::model {

// Returns (T, K): the K different experts of each of a rank's tokens, a function of the arguments.
// balanced: of any E consecutive choices that begin at a multiple of E, each expert has one; which
// experts a token has is random. zipf: expert e has a part of the choices in proportion to
// 1 / (e + 1), but at most one choice of a token, in every layer and every run of tokens
// (systematic sampling: Madow 1949, "On the theory of systematic sampling, II").
std::vector<int32_t> pattern_choices(RoutePattern pattern, int64_t layer, int64_t T, int64_t E,
                                     int64_t K);

}  // namespace mtrain::model
