// A GemmChoice says which algorithm of the library computes a kind of GEMM. It has a form as text:
// ranks tell each other choices, and checkpoints keep them.
#pragma once
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm_api.h"

namespace mtrain::kernels::cuda {

struct GemmChoice {
  MatmulKey key;
  bool apart = false;             // mtrain's own kernels compute the epilogue, behind a plain GEMM
  GemmAlgorithm::Bits bits = {};  // unless apart
};

// Return a line for each, and the reverse. Parsing throws RunError for text of another form.
std::string print_gemm_keys(const std::vector<MatmulKey>& keys);
std::vector<MatmulKey> parse_gemm_keys(const std::string& text);
// Choices begin with a line that names the library and the GPU.
struct GemmChoices {
  std::string version;
  std::vector<GemmChoice> choices;
};
std::string print_gemm_choices(const GemmChoices& choices);
GemmChoices parse_gemm_choices(const std::string& text);  // of an empty text: none

}  // namespace mtrain::kernels::cuda
