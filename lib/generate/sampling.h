// Chooses the next token from logits. The options act in the order of transformers' processors:
// repetition penalty, temperature, top-k, top-p, min-p.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace mtrain::generate {

struct SamplingOptions {
  double temperature = 0.8;  // divides the logits; 0: the most likely token, without a random draw
  int64_t top_k = 40;        // keeps the k most likely tokens, and ties with the last; 0: all
  double top_p = 1;  // keeps the most likely tokens until their probabilities reach this; 1: all
  double min_p = 0;  // keeps tokens at least this likely, relative to the most likely; 0: all
  // Divides the logits of tokens that have already occurred if they are positive, else multiplies
  // them (Keskar et al. 2019, "CTRL"); 1: no change.
  double repetition_penalty = 1;
  uint64_t seed = 1;
};

// Throws UserError for a value that is not finite, or out of its range.
void check(const SamplingOptions& options);

struct Candidate {
  int32_t id;
  double probability;
};

// Returns the tokens that may be drawn, by descending probability, then by id. Their probabilities
// add up to 1. `before` holds the sequence so far. With temperature 0 the only candidate is the
// most likely token. Throws RunError if a logit is not finite.
std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int32_t> before,
                                  const SamplingOptions& options);

// Returns the candidate whose interval of the cumulative probability contains the number in [0, 1).
int32_t pick(std::span<const Candidate> candidates, double number);

// Draws a token, with the random number `index` of the stream `sample`. The result is a function of
// the arguments only.
int32_t draw(std::span<const float> logits, std::span<const int32_t> before,
             const SamplingOptions& options, uint64_t sample, uint64_t index);

}  // namespace mtrain::generate
