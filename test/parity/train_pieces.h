// Compares the layout-free tensors that the pieces of ranks make.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "train/parameter_pieces.h"
#include "train/trainer.h"

namespace train_testing {

using namespace mtrain;

using train::Piece;
using train::Pieces;
using train::pieces;

// Assembles the layout-free tensor from the pieces of the ranks. Elements that several ranks have
// must have the same bits.
template <class Result>
std::vector<float> assemble(std::span<const Result> ranks, Pieces Result::*which,
                            const std::string& name) {
  std::vector<const Pieces*> all;
  for (const Result& r : ranks) all.push_back(&(r.*which));
  train::AssembledTensor tensor = train::assemble_pieces(all, name);
  INFO(name);
  REQUIRE_FALSE(tensor.values.empty());
  CHECK(tensor.same);
  CHECK(tensor.complete);
  return std::move(tensor.values);
}
template <class Result>
std::vector<float> assemble(const std::vector<Result>& ranks, Pieces Result::*which,
                            const std::string& name) {
  return assemble(std::span(ranks), which, name);
}

template <class Result>
void check_tensors(const Result& one, const std::vector<Result>& ranks, Pieces Result::*which,
                   double bound) {
  for (const auto& [name, piece] : one.*which) {
    const auto got = assemble(ranks, which, name), want = assemble(std::span(&one, 1), which, name);
    REQUIRE(got.size() == want.size());
    double difference = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(double(got[i]) - double(want[i]), 2);
      size += std::pow(double(want[i]), 2);
    }
    INFO(name << " relative L2 " << std::sqrt(difference / size));
    CHECK(difference <= bound * bound * size);
  }
}

}  // namespace train_testing
