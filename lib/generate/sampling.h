// Chooses the next token from logits. The options act in the order of transformers' processors:
// repetition penalty, temperature, top-k, top-p, min-p.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace mtrain::generate {

struct SamplingOptions {
  double temperature = 0.8;  // logits are divided by it; 0: the likeliest token, without a draw
  int64_t top_k = 40;        // keeps the k likeliest tokens, and those that equal the last; 0: all
  double top_p = 1;  // keeps the fewest likeliest tokens whose probabilities reach it; 1: all
  double min_p = 0;  // keeps tokens at least so likely, relative to the likeliest; 0: all
  // The logits of tokens that occurred already are divided by it if positive, else multiplied
  // (Keskar et al. 2019, "CTRL"); 1: nothing.
  double repetition_penalty = 1;
  uint64_t seed = 1;
};

// Throws UserError for a value that no draw can follow: one that is not finite, or out of its
// range.
void check(const SamplingOptions& options);

struct Candidate {
  int32_t id;
  double probability;
};

// Returns the tokens that may be drawn, likeliest first and of equal ones the lower id first. Their
// probabilities add up to 1. `before` holds the sequence so far. With temperature 0 the only
// candidate is the likeliest token. Throws RunError if a logit is not finite.
std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int32_t> before,
                                  const SamplingOptions& options);

// Returns the candidate that a number in [0, 1) falls on.
int32_t pick(std::span<const Candidate> candidates, double number);

// Draws a token. The draw is number `index` of the stream `sample`: a function of the options, the
// logits and these two numbers.
int32_t draw(std::span<const float> logits, std::span<const int32_t> before,
             const SamplingOptions& options, uint64_t sample, uint64_t index);

}  // namespace mtrain::generate
