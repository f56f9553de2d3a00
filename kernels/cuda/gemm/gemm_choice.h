// A GemmChoice is the library's algorithm for a kind of GEMM. It can be written as text: ranks
// exchange choices, and checkpoints store them.
#pragma once
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm_api.h"

namespace mtrain::kernels::cuda {

struct GemmChoice {
  MatmulKey key;
  bool apart = false;             // mtrain's own kernels compute the epilogue after a plain GEMM
  GemmAlgorithm::Bits bits = {};  // unless apart
};

// Print one line for each key, and parse such lines. Parsing throws RunError for malformed text.
std::string print_gemm_keys(const std::vector<MatmulKey>& keys);
std::vector<MatmulKey> parse_gemm_keys(const std::string& text);
// Choices begin with a line that names the library and the GPU.
struct GemmChoices {
  std::string version;
  std::vector<GemmChoice> choices;
};
std::string print_gemm_choices(const GemmChoices& choices);
GemmChoices parse_gemm_choices(const std::string& text);  // an empty text has no choices

}  // namespace mtrain::kernels::cuda
