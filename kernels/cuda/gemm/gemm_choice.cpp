#include "kernels/cuda/gemm/gemm_choice.h"

#include <sstream>

#include "base/error.h"

namespace mtrain::kernels::cuda {
namespace {

// Calls field(member) for each member of the key, in the order of the text.
template <class Key, class Field>
void each_field(Key& k, const Field& field) {
  field(k.M), field(k.N), field(k.K);
  field(k.trans_a), field(k.trans_b), field(k.accumulate), field(k.fast);
  field(k.epilogue), field(k.a), field(k.b), field(k.c), field(k.bias);
  field(k.a_blocks), field(k.b_blocks);
  field(k.a_alignment), field(k.b_alignment), field(k.c_alignment), field(k.bias_alignment);
}

std::string print(const MatmulKey& key) {
  std::string line;
  each_field(key, [&](const auto& value) { line += fmt::format("{} ", int64_t(value)); });
  if (key.sm_margin > 0) line += fmt::format("margin {} ", key.sm_margin);
  return line;
}

MatmulKey parse_key(std::istringstream& in) {
  MatmulKey key{};
  each_field(key, [&]<class T>(T& value) {
    int64_t number = 0;
    in >> number;
    value = T(number);
  });
  // Texts that were stored before GEMMs had margins end here.
  if (!in.eof()) in >> std::ws;
  if (in && !in.eof() && in.peek() == 'm') {
    std::string word;
    in >> word >> key.sm_margin;
    if (word != "margin" || key.sm_margin < 1) in.setstate(std::ios::failbit);
  }
  if (!in || key.M < 1 || key.N < 1 || key.K < 1 || key.epilogue > Epilogue::sums ||
      key.a_blocks > ScaleBlocks::rows_32 || key.b_blocks > ScaleBlocks::rows_32)
    throw RunError("a line that names no GEMM: " + in.str());
  return key;
}

template <class Line>
void each_line(const std::string& text, const Line& line) {
  std::istringstream lines(text);
  for (std::string one; std::getline(lines, one);) line(one);
}

}  // namespace

std::string print_gemm_keys(const std::vector<MatmulKey>& keys) {
  std::string text;
  for (const MatmulKey& k : keys) text += print(k) + "\n";
  return text;
}

std::vector<MatmulKey> parse_gemm_keys(const std::string& text) {
  std::vector<MatmulKey> keys;
  each_line(text, [&](const std::string& line) {
    std::istringstream in(line);
    keys.push_back(parse_key(in));
  });
  return keys;
}

std::string print_gemm_choices(const GemmChoices& choices) {
  std::string text = choices.version + "\n";
  for (const GemmChoice& c : choices.choices) {
    text += print(c.key) + (c.apart ? "apart" : "fused");
    for (const uint64_t word : c.bits) text += fmt::format(" {:x}", word);
    text += "\n";
  }
  return text;
}

GemmChoices parse_gemm_choices(const std::string& text) {
  GemmChoices all;
  bool first = true;
  each_line(text, [&](const std::string& line) {
    if (std::exchange(first, false)) {
      all.version = line;
      return;
    }
    std::istringstream in(line);
    GemmChoice c{.key = parse_key(in)};
    std::string how;
    in >> how >> std::hex;
    for (uint64_t& word : c.bits) in >> word;
    if (!in || (how != "apart" && how != "fused"))
      throw RunError("a line that names no algorithm of a GEMM: " + line);
    c.apart = how == "apart";
    all.choices.push_back(c);
  });
  return all;
}

}  // namespace mtrain::kernels::cuda
