// The letters that stand for kinds of launches in a timeline, the same in every trace: small ones
// for computations, capitals for communication.
#pragma once
#include <string_view>

namespace mtrain::observe {

inline constexpr char kWaits = '-';

// Returns the letter of a launch's kind: matmul_fc1_fwd and matmul_qkv_dgrad are both `m`. Returns
// `z` for other kinds.
char letter_of(std::string_view launch);

// Returns the meaning of a letter: "matmul", "all_gather", "waits".
std::string_view meaning_of_letter(char letter);

}  // namespace mtrain::observe
