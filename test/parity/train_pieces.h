// The pieces that tensor-parallel ranks have of each parameter, and the layout-free tensors that
// these pieces make.
#pragma once
#include <cmath>
#include <functional>
#include <map>
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
std::vector<float> assemble(const std::vector<Result>& ranks, Pieces Result::*which,
                            const std::string& name) {
  std::map<int64_t, float> elements;
  bool same = true;
  for (const Result& r : ranks) {
    const auto found = (r.*which).find(name);
    if (found == (r.*which).end()) continue;  // on another stage
    const Piece& piece = found->second;
    for (const model::ElementRun& run : piece.runs)
      for (int64_t i = 0; i < run.count; ++i) {
        const float value = piece.values[size_t(run.here + i)];
        same = same && elements.emplace(run.whole + i, value).first->second == value;
      }
  }
  INFO(name);
  REQUIRE_FALSE(elements.empty());
  CHECK(same);
  std::vector<float> whole;
  for (const auto& [index, value] : elements) whole.push_back(value);
  CHECK(elements.rbegin()->first == int64_t(whole.size()) - 1);
  return whole;
}

template <class Result>
void check_tensors(const Result& one, const std::vector<Result>& ranks, Pieces Result::*which,
                   double bound) {
  for (const auto& [name, piece] : one.*which) {
    const auto got = assemble(ranks, which, name), want = assemble(std::vector{one}, which, name);
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
