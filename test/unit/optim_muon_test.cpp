// The arithmetic of whole matrices: which rank has which elements, who works on a matrix, and which
// rule each parameter has.
#include <cmath>

#include <catch2/catch.hpp>

#include "device/device.h"
#include "optim/matrix_shares.h"
#include "optim/newton_schulz.h"
#include "optim/param_rules.h"

namespace optim_muon_test {

using namespace mtrain;
using namespace mtrain::optim;

namespace {

// A layer as one rank of tensor, expert and data parallelism declares it: a qkv of 8 query and 2 kv
// heads, a proj, and 4 experts. Sizes are odd, so that shares end inside rows.
struct Layer {
  Layer(int tp, int tp_rank, int ep, int ep_rank, model::Sharding sharding)
      : device(Device::cpu(1, {})), stream(device->stream(device::StreamKind::compute)) {
    using Dim = model::ShardSpec::Dim;
    const std::vector<model::ShardSpec::Section> heads{{8, 3}, {2, 3}, {2, 3}},
        gates{{8, 1}, {8, 1}};
    const auto rows = [&](const auto& sections) {
      int64_t n = 0;
      for (const auto& s : sections) n += s.rows_here(tp);
      return n;
    };
    const auto shard = [&](Dim dim, std::vector<model::ShardSpec::Section> sections = {}) {
      return model::ShardSpec{
          .ranks = tp, .rank = tp_rank, .dim = dim, .sections = std::move(sections)};
    };
    const model::UnitId layer{model::UnitKind::layer, 0}, experts{model::UnitKind::experts, 0};
    params.add(layer, {.name = "norm", .shape = {7}, .role = TensorRole::vector});
    params.add(layer, {.name = "qkv",
                       .shape = {rows(heads), 5},
                       .stacked = {24, 6, 6},
                       .shard = shard(Dim::rows, heads)});
    params.add(layer, {.name = "proj", .shape = {7, 24 / tp}, .shard = shard(Dim::columns)});
    params.add(layer, {.name = "router", .shape = {4, 5}, .shard = shard(Dim::none)});
    params.add(experts, {.name = "gate_up",
                         .shape = {4 / ep, rows(gates), 5},
                         .stacked = {8, 8},
                         .shard = shard(Dim::rows, gates),
                         .experts = {ep, ep_rank}});
    params.materialize(stream, DType::f32, true, sharding);
  }
  std::unique_ptr<Device> device;
  Stream& stream;
  model::ParamStore params;
};

}  // namespace

TEST_CASE("the weights stacked in a tensor, and each expert's, are matrices of their own") {
  const Layer whole(1, 0, 1, 0, {});
  const auto shapes = [&](const char* name) {
    std::vector<std::vector<int64_t>> all;
    for (const model::Parameter* p : const_cast<Layer&>(whole).params.params())
      if (p->name == name)
        for (const Matrix& m : matrices_of(*p)) all.push_back({m.expert, m.row, m.rows, m.columns});
    return all;
  };
  CHECK((shapes("qkv") ==
         std::vector<std::vector<int64_t>>{{0, 0, 24, 5}, {0, 24, 6, 5}, {0, 30, 6, 5}}));
  CHECK((shapes("proj") == std::vector<std::vector<int64_t>>{{0, 0, 7, 24}}));
  CHECK(shapes("gate_up").size() == 8);
  CHECK((shapes("gate_up")[3] == std::vector<int64_t>{1, 8, 8, 5}));
}

TEST_CASE("the tiles of all ranks cover each matrix once, copies left out") {
  for (const int tp : {1, 2, 4})
    for (const int ep : {1, 2})
      for (const int ranks : {1, 3}) {
        CAPTURE(tp, ep, ranks);
        Layer first(tp, 0, ep, 0, {.ranks = ranks, .piece = 100});
        for (const char* name : {"qkv", "proj", "router", "gate_up"})
          for (const Matrix& m : matrices_of(*first.params.find(name))) {
            std::vector<int> covered(size_t(m.rows * m.columns));
            for (int t = 0; t < tp; ++t)
              for (int e = 0; e < (name == std::string("gate_up") ? ep : 1); ++e)
                for (int d = 0; d < ranks; ++d) {
                  const Layer layer(tp, t, ep, e, {.ranks = ranks, .rank = d, .piece = 100});
                  const model::Parameter& p = *const_cast<Layer&>(layer).params.find(name);
                  const auto tiles = tiles_of(p, m, place_of(p));
                  // Another rank finds the same tiles for this one's place.
                  REQUIRE(tiles.size() ==
                          tiles_of(*first.params.find(name), m, place_of(p)).size());
                  for (const Tile& tile : tiles)
                    for (int64_t i = 0; i < tile.count(); ++i) {
                      const int64_t row = tile.row + i / tile.columns,
                                    column = tile.column + i % tile.columns,
                                    rows = p.part_shape()[p.row_dim()];
                      REQUIRE(p.full_index(tile.in_unit - p.begin + i) ==
                              (m.expert * rows + m.row + row) * m.columns + column);
                      covered[size_t(row * m.columns + column)] += !tile.copy;
                    }
                }
            REQUIRE(covered == std::vector<int>(covered.size(), 1));
          }
      }
}

TEST_CASE(
    "each part of a weight that a rank of tensor parallelism has is a matrix, copies left out") {
  for (const int tp : {1, 2, 4})
    for (const int ranks : {1, 3})
      for (const char* name : {"qkv", "proj", "router", "gate_up"}) {
        CAPTURE(tp, ranks, name);
        Layer first(tp, 0, 1, 0, {.ranks = ranks, .piece = 100});
        const model::Parameter& spec = *first.params.find(name);
        const bool divided = tp > 1 && name != std::string("router");
        // Four ranks share two heads of k and v.
        const size_t weights = matrices_of(spec).size(),
                     parts = name == std::string("qkv") ? size_t(tp + 2 * std::min(tp, 2))
                                                        : size_t(tp) * weights;
        CHECK(shard_matrices_of(spec).size() == (divided ? parts : weights));
        int64_t elements = 0;
        for (const Matrix& m : shard_matrices_of(spec)) {
          elements += m.rows * m.columns;
          std::vector<int> covered(size_t(m.rows * m.columns));
          for (int t = 0; t < tp; ++t)
            for (int d = 0; d < ranks; ++d) {
              const Layer layer(tp, t, 1, 0, {.ranks = ranks, .rank = d, .piece = 100});
              const model::Parameter& p = *const_cast<Layer&>(layer).params.find(name);
              const Shape whole = p.full_shape();
              for (const Tile& tile : tiles_of(p, m, place_of(p))) {
                for (int64_t i = 0; i < tile.count(); ++i) {
                  const int64_t row = tile.row + i / tile.columns,
                                column = tile.column + i % tile.columns;
                  REQUIRE(p.full_index(tile.in_unit - p.begin + i) ==
                          (m.expert * whole[p.row_dim()] + m.row + row) * whole[whole.rank() - 1] +
                              m.column + column);
                  covered[size_t(row * m.columns + column)] += !tile.copy;
                }
              }
            }
          REQUIRE(covered == std::vector<int>(covered.size(), 1));
        }
        CHECK(elements == spec.full_shape().count());
      }
}

TEST_CASE("owners are balanced by work, and a rank that has a matrix is preferred") {
  const auto nothing = [](size_t, int) { return 0.0; };
  CHECK(balanced_owners({3, 8, 3, 2}, 2, nothing) == std::vector{1, 0, 1, 1});
  CHECK(balanced_owners({5, 5, 5, 5}, 4, nothing) == std::vector{0, 1, 2, 3});
  // Matrix i is on rank 3 - i, and elsewhere costs more than its work.
  CHECK(balanced_owners({5, 5, 5, 5}, 4, [](size_t i, int r) {
          return r == 3 - int(i) ? 0.0 : 9.0;
        }) == std::vector{3, 2, 1, 0});
}

TEST_CASE("the Newton-Schulz iteration equals float64, for wide and tall matrices") {
  const auto device = Device::cpu(2, {});
  Stream& stream = device->stream(device::StreamKind::compute);
  for (const auto& [R, C] : {std::pair<int64_t, int64_t>{5, 9}, {9, 5}, {6, 6}, {1, 8}}) {
    CAPTURE(R, C);
    std::vector<float> start(size_t(R * C));
    for (size_t i = 0; i < start.size(); ++i) start[i] = float(std::sin(1.0 + 3.7 * double(i)));
    // X of R x C in float64; G = X X^T, whatever the shape: the result is the same.
    std::vector<double> x(start.begin(), start.end());
    double squares = 0;
    for (const double v : x) squares += v * v;
    for (double& v : x) v /= std::sqrt(squares);
    NewtonSchulz o;
    o.coefficients = {4.0848, -6.8946, 2.927,   3.9505, -6.3029, 2.6377,  3.7418, -5.5913,
                      2.3037, 2.8769,  -3.1427, 1.2046, 2.8366,  -3.0525, 1.2012};
    for (size_t step = 0; step < size_t(o.steps); ++step) {
      const double a = o.coefficients[3 * step], b = o.coefficients[3 * step + 1],
                   c = o.coefficients[3 * step + 2];
      std::vector<double> g(size_t(R * R)), next(x.size());
      const auto at = [](auto& m, int64_t row, int64_t column, int64_t width) -> double& {
        return m[size_t(row * width + column)];
      };
      for (int64_t i = 0; i < R; ++i)
        for (int64_t j = 0; j < R; ++j)
          for (int64_t k = 0; k < C; ++k) at(g, i, j, R) += at(x, i, k, C) * at(x, j, k, C);
      for (int64_t i = 0; i < R; ++i)
        for (int64_t j = 0; j < C; ++j) {
          at(next, i, j, C) = a * at(x, i, j, C);
          for (int64_t k = 0; k < R; ++k) {
            double factor = b * at(g, i, k, R);
            for (int64_t l = 0; l < R; ++l) factor += c * at(g, i, l, R) * at(g, l, k, R);
            at(next, i, j, C) += factor * at(x, k, j, C);
          }
        }
      x = next;
    }
    const Tensor t = Tensor::from_host<float>(stream, {R, C}, start);
    orthogonalize(stream, o, t);
    const auto got = t.to_host<float>(stream);
    // Five steps of three sums of up to 9 terms, whose sizes are about 1.
    for (size_t i = 0; i < x.size(); ++i) CHECK(got[i] == Approx(x[i]).margin(2e-5));
  }
}

TEST_CASE("the first group that matches decides, and matrices of AdamW have AdamW's rate") {
  plan::OptimizerOptions o;
  o.weight_decay = 0.1;
  o.muon.on = true;
  o.muon.others_lr_scale = 0.5;
  o.groups = {{.match = "router", .lr_scale = 2.0, .adamw = true},
              {.match = "down", .adamw = true},
              {.match = "proj", .lr_over_peak = 0.125, .adamw = true},
              {.match = "^layers\\.[01]\\.", .lr_over_peak = 0.25, .weight_decay = 0.3},
              {.match = "weight", .weight_decay = 0.0}};
  const ParamRules rules(o);
  const auto rule = [&](const char* name, TensorRole role) {
    return rules.of({.name = name, .shape = {2, 2}, .role = role});
  };
  using enum TensorRole;
  CHECK(rule("layers.0.mlp.router.weight", matrix) ==
        ParamRule{.muon = false, .lr_scale = 1, .weight_decay = 0.1f});
  CHECK(rule("layers.0.mlp.down.weight", matrix) ==
        ParamRule{.muon = false, .lr_scale = 0.5, .weight_decay = 0.1f});
  CHECK(rule("layers.0.attention.proj.weight", matrix) ==
        ParamRule{.muon = false, .lr_scale = 0.125, .weight_decay = 0.1f});
  CHECK(rule("layers.1.mlp.up.weight", matrix) ==
        ParamRule{.muon = true, .lr_scale = 0.25, .weight_decay = 0.3f});
  CHECK(rule("layers.11.mlp.up.weight", matrix) ==
        ParamRule{.muon = true, .lr_scale = 1, .weight_decay = 0});
  CHECK(rule("layers.11.mlp.up.bias", vector) ==
        ParamRule{.muon = false, .lr_scale = 0.5, .weight_decay = 0});
  CHECK(rule("layers.0.norm.weight", vector) ==
        ParamRule{.muon = false, .lr_scale = 0.25, .weight_decay = 0.3f});
  model::ParamStore params;
  for (const char* name : {"layers.0.mlp.router.weight", "layers.0.norm.weight"})
    params.add({model::UnitKind::layer, 0}, {.name = name, .shape = {2}});
  CHECK((rules.used_groups(params.params()) == std::vector<bool>{true, false, false, true, false}));
  CHECK(rule("position_table", table) ==
        ParamRule{.muon = false, .lr_scale = 0.5, .weight_decay = 0.1f});
}

}  // namespace optim_muon_test
