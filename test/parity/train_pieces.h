// The pieces that tensor-parallel ranks have of each parameter, and the layout-free tensors that
// these pieces make.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "train/trainer.h"

namespace train_testing {

using namespace mtrain;

// The elements of a parameter that one rank has.
struct Piece {
  std::vector<model::ElementRun> runs;
  std::vector<float> values;
  bool operator==(const Piece&) const = default;
};
using Pieces = std::map<std::string, Piece>;

inline Pieces pieces(train::Trainer& t, const std::function<Tensor(model::ParamUnit&)>& whole) {
  Pieces all;
  for (model::ParamUnit* unit : t.params().units()) {
    const Tensor values = whole(*unit);
    for (const model::Parameter* p : unit->params)
      all[p->name] = {p->runs(), values.flat(p->begin, p->shape).to_host<float>(t.compute())};
  }
  return all;
}

// Assembles the layout-free tensor from the pieces of the ranks. Elements that several ranks have
// must have the same bits.
template <class Result>
std::vector<float> assemble(std::span<const Result> ranks, Pieces Result::*which,
                            const std::string& name) {
  std::vector<float> whole;
  std::vector<char> known;
  bool same = true;
  for (const Result& r : ranks) {
    const auto found = (r.*which).find(name);
    if (found == (r.*which).end()) continue;  // on another stage
    const Piece& piece = found->second;
    for (const model::ElementRun& run : piece.runs) {
      const auto end = size_t(run.full + run.count);
      if (whole.size() < end) whole.resize(end), known.resize(end);
      REQUIRE(size_t(run.here + run.count) <= piece.values.size());
      const float* values = piece.values.data() + run.here;
      for (auto at = size_t(run.full); at < end; ++at, ++values) {
        if (!known[at]) known[at] = 1, whole[at] = *values;
        same = same && whole[at] == *values;
      }
    }
  }
  INFO(name);
  REQUIRE_FALSE(whole.empty());
  CHECK(same);
  CHECK(std::ranges::find(known, 0) == known.end());
  return whole;
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
