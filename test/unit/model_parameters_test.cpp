// Tests parameters, and gradients that several entries of the weight-gradient queue share.
#include <limits>
#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "base/rng.h"
#include "device/device.h"
#include "model/embedding.h"
#include "model/param/param_uploader.h"
#include "model/param/parameters.h"
#include "ops/elementwise.h"

namespace model_parameters_test {

using namespace mtrain;
using namespace mtrain::model;

TEST_CASE("initial weights are functions of seed, name and element, in every precision") {
  const auto device = Device::cpu(3);
  Stream& stream = device->stream(device::StreamKind::compute);
  for (const bool training : {true, false})
    for (const DType compute : {DType::f32, DType::bf16}) {
      ParamStore params;
      Parameter* normal =
          params.add({UnitKind::layer, 0},
                     {.name = "a.weight", .shape = {300, 128}, .std = 0.5f, .rows = 299});
      Parameter* ones = params.add(
          {UnitKind::layer, 0},
          {.name = "a.norm", .shape = {77}, .init = Init::ones, .role = TensorRole::vector});
      Parameter* zeros =
          params.add({UnitKind::layer, 1}, {.name = "b.bias", .shape = {77}, .init = Init::zeros});
      params.materialize(stream, compute, training);
      params.initialize(stream, 42);
      std::vector<float> want(300 * 128);  // the last row is padding and stays zero
      fill_normal(rng_key(42, "a.weight"), 0, 299 * 128, 0.5f, want.data());
      if (normal->master) CHECK((normal->master.to_host<float>(stream) == want));
      if (compute == DType::bf16)
        for (float& w : want) w = float(bf16(w));
      CHECK((normal->value.to_host_float(stream) == want));
      CHECK((ones->value.to_host_float(stream) == std::vector<float>(77, 1.0f)));
      CHECK((zeros->value.to_host_float(stream) == std::vector<float>(77, 0.0f)));
    }
}

TEST_CASE("a frozen table begins as any other, through a buffer much smaller than itself") {
  std::vector<std::vector<float>> values;
  for (const bool frozen : {false, true}) {
    const auto device = Device::cpu(1);
    Stream& stream = device->stream(device::StreamKind::compute);
    ParamStore params;
    Parameter* table = params.add(
        UnitKind::embedding,
        {.name = "table", .shape = {2500, 1024}, .std = 0.5f, .rows = 2499, .frozen = frozen});
    params.materialize(stream, DType::bf16, true);
    params.initialize(stream, 42);
    CHECK(device->allocator().usage(device::MemoryCategory::buffers).peak <= 4 << 20);
    values.push_back(table->value.to_host_float(stream));
  }
  CHECK((values[0] == values[1]));
}

TEST_CASE("full values that ranks gather lie in the memory that is offered for them") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  ParamStore params;
  params.add({UnitKind::layer, 0}, {.name = "shared", .shape = {64, 8}, .std = 1});
  params.add({UnitKind::layer, 1}, {.name = "own", .shape = {64, 8}, .std = 1});
  params.add({UnitKind::layer, 2}, {.name = "not offered", .shape = {64, 8}, .std = 1});
  Tensor offered;
  params.materialize_by_unit(
      stream, DType::bf16, true,
      [](const ParamUnit& unit) { return Sharding{.ranks = unit.id.layer == 1 ? 1 : 2}; }, true,
      [&](const ParamUnit& unit, int64_t count, DType dtype) {
        CHECK(unit.id.layer != 1);  // no rank gathers it
        CHECK(count == unit.count);
        if (unit.id.layer == 2) return Tensor();
        offered = Tensor::empty(stream, {count}, dtype, device::MemoryCategory::params);
        ops::fill(stream, offered, std::numeric_limits<float>::quiet_NaN());
        return offered;
      });
  REQUIRE(offered.dtype() == DType::bf16);
  const auto units = params.units();
  CHECK(units[0]->value.data() == offered.data());
  CHECK(units[0]->params[0]->value.data() == offered.data());
  for (const ParamUnit* unit : units)  // padding is zero, too
    CHECK((unit->value.to_host_float(stream) == std::vector<float>(size_t(unit->count), 0.0f)));
}

TEST_CASE("a tied table's gradient is whole whichever of its entries is drained first") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  ParamStore params;
  Embedding embedding(params, {.hidden = 2, .vocab = 3, .tied_embeddings = true},
                      {.padded_vocab = 4});
  Parameter& table = *embedding.table();
  params.materialize(stream, DType::f32, true);
  ops::fill(stream, table.grad,
            std::numeric_limits<float>::quiet_NaN());  // a value of an older step
  params.zero_grads(stream);

  const Tensor id = Tensor::from_host<int32_t>(stream, {3}, {2, 0, 2});
  const Tensor d = Tensor::from_host<float>(stream, {3, 2}, {1, 2, 3, 4, 5, 6});
  SequenceInfo seq;
  WgradQueue wgrad;
  Stash stash;
  Step step{.compute = stream, .wgrad = wgrad, .stash = &stash, .seq = seq};
  embedding.backward(step, id, d);
  CHECK_FALSE(table.consume_first_write());  // the head's entry adds
  CHECK(table.grad.to_host<float>(stream) == std::vector<float>{3, 4, 0, 0, 6, 8, 0, 0});
}

TEST_CASE(
    "embeddings are multiplied by a number that is rounded to their type, as their gradients") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  for (const auto& [dtype, factor] :  // 33.941125 rounds to 34 with 8 bits, to 33.9375 with 11
       {std::pair{DType::f32, 33.941125f}, {DType::bf16, 34.0f}, {DType::f16, 33.9375f}}) {
    CAPTURE(dtype_name(dtype));
    ParamStore params;
    Embedding embedding(params, {.hidden = 2, .vocab = 3, .embedding_scale = 33.941125f},
                        {.padded_vocab = 4});
    params.materialize(stream, dtype, true);
    params.set_master(stream, *embedding.table(), {1, 2, -0.5f, 1, 4, 0.25f});
    params.zero_grads(stream);
    const Tensor id = Tensor::from_host<int32_t>(stream, {3}, {2, 0, 2});
    SequenceInfo seq;
    WgradQueue wgrad;
    Stash stash;
    Step step{.compute = stream, .wgrad = wgrad, .stash = &stash, .seq = seq};
    const Tensor x_TH = embedding.forward(step, id);
    CHECK(x_TH.to_host_float(stream) == std::vector<float>{4 * factor, 0.25f * factor, factor,
                                                           2 * factor, 4 * factor, 0.25f * factor});
    const Tensor d = ops::in_dtype(
        stream, Tensor::from_host<float>(stream, {3, 2}, {1, 2, 4, 0.5f, 1, 2}), dtype);
    embedding.backward(step, id, d);
    const auto grad = embedding.table()->grad.to_host<float>(stream);
    CHECK(grad ==
          std::vector<float>{4 * factor, 0.5f * factor, 0, 0, 2 * factor, 4 * factor, 0, 0});
  }
}

namespace {
// Two units of four pieces in all, with padding everywhere.
struct FourPieces {
  explicit FourPieces(Stream& stream, const Sharding& sharding, DType compute) {
    params.add({UnitKind::layer, 0}, {.name = "norm", .shape = {19}, .role = TensorRole::vector});
    params.add({UnitKind::layer, 0}, {.name = "w", .shape = {30, 21}, .rows = 29});
    params.add({UnitKind::layer, 0},
               {.name = "bias", .shape = {33}, .init = Init::ones, .role = TensorRole::vector});
    params.add({UnitKind::layer, 0}, {.name = "w2", .shape = {211}});
    params.add({UnitKind::layer, 1}, {.name = "v", .shape = {77}});
    params.materialize(stream, compute, true, sharding);
    params.initialize(stream, 3);
  }
  ParamStore params;
};
}  // namespace

TEST_CASE("the parts that ranks own are all of a unit, each element once, with the same values") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  for (const DType compute : {DType::f32, DType::bf16})
    for (const int ranks : {2, 3, 8})
      for (const bool sharded : {false, true}) {
        CAPTURE(ranks, sharded);
        FourPieces alone(stream, {.piece = 200}, compute);
        CHECK(alone.params.units()[0]->pieces.size() == 3);
        std::map<std::string, std::vector<int>> owners;
        for (int rank = 0; rank < ranks; ++rank) {
          FourPieces shard(stream, {ranks, rank, sharded, sharded, 200}, compute);
          for (Parameter* p : shard.params.params()) {
            CHECK(bool(p->value) != sharded);
            CHECK(p->unit->count % ranks == 0);
            const auto want = alone.params.find(p->name)->master.to_host<float>(stream);
            auto& seen = owners[p->name];
            seen.resize(want.size());
            for (const OwnedPart& part : owned_parts(*p)) {
              const auto got =
                  part.range->master.flat(part.in_range, {part.count}).to_host<float>(stream);
              for (int64_t i = 0; i < part.count; ++i) {
                CHECK(got[size_t(i)] == want[size_t(part.in_param + i)]);
                ++seen[size_t(part.in_param + i)];
              }
            }
          }
        }
        for (auto& [name, seen] : owners) {
          const int64_t real = alone.params.find(name)->real_count();
          for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == (int64_t(i) < real ? 1 : 0));
        }
      }
}

namespace {
// The slices that one of `ranks` tensor-parallel ranks has of the parameters of a layer with
// grouped-query attention, of experts and of a vocabulary.
struct Slices {
  Slices(Stream& stream, int ranks, int rank, const Sharding& sharding, DType compute = DType::f32,
         bool masters = true) {
    const auto add = [&](const char* name, Shape shape, ShardSpec shard, int64_t rows = -1) {
      shard.ranks = ranks, shard.rank = rank;
      params.add({UnitKind::layer, 0},
                 {.name = name, .shape = shape, .rows = rows, .shard = shard});
    };
    const std::vector<ShardSpec::Section> heads{{8, 3}, {2, 3}, {2, 3}};
    int64_t rows = 0;
    for (const ShardSpec::Section& s : heads) rows += s.rows_here(ranks);
    add("qkv", {rows, 5}, {.dim = ShardSpec::Dim::rows, .sections = heads, .partial_grad = true});
    add("bias", {rows}, {.dim = ShardSpec::Dim::rows, .sections = heads, .partial_grad = true});
    add("proj", {7, 24 / ranks}, {.dim = ShardSpec::Dim::columns});
    add("norm", {7}, {});
    add("gate_up", {3, 16 / ranks, 5}, {.dim = ShardSpec::Dim::rows, .sections = {{8, 1}, {8, 1}}});
    add("down", {3, 5, 8 / ranks}, {.dim = ShardSpec::Dim::columns});
    add("table", {16 / ranks, 7}, {.dim = ShardSpec::Dim::rows, .sections = {{16, 1}}}, 11);
    params.materialize(stream, compute, true, sharding, masters);
    params.initialize(stream, 3);
  }
  ParamStore params;
};
}  // namespace

TEST_CASE("a rank's slice has the values of the layout-free tensor, and each counts once") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  Slices alone(stream, 1, 0, {});
  for (const int ranks : {2, 4, 8})
    for (const int owners : {1, 2}) {  // ranks of data parallelism, which shard the slices again
      CAPTURE(ranks, owners);
      std::map<std::string, std::vector<int>> held;
      double counted = 0, want_counted = 0;
      for (int rank = 0; rank < ranks; ++rank)
        for (int owner = 0; owner < owners; ++owner) {
          Slices slices(stream, ranks, rank, {owners, owner, false, false, 40});
          for (Parameter* p : slices.params.params()) {
            const auto whole = alone.params.find(p->name)->master.to_host<float>(stream);
            CHECK(p->full_shape() == alone.params.find(p->name)->full_shape());
            std::vector<float> want;  // the real elements, in the order of the rank's tensor
            for (const ElementRun& r : p->runs())
              want.insert(want.end(), whole.begin() + r.full, whole.begin() + r.full + r.count);
            REQUIRE(int64_t(want.size()) == p->real_count());
            auto& copies = held[p->name];
            copies.resize(whole.size());
            // Read again by set_master, from the layout-free values.
            slices.params.set_master(stream, *p,
                                     {whole.begin(), whole.begin() + p->full_shape().count()});
            for (const OwnedPart& part : owned_parts(*p)) {
              const auto got =
                  part.range->master.flat(part.in_range, {part.count}).to_host<float>(stream);
              for (int64_t i = 0; i < part.count; ++i) {
                CHECK(got[size_t(i)] == want[size_t(part.in_param + i)]);
                ++copies[size_t(p->full_index(part.in_param + i))];
              }
            }
          }
          for (ParamUnit* unit : slices.params.units()) ops::fill(stream, unit->grad, 0);
          for (Parameter* p : slices.params.params())
            ops::fill(stream, p->grad.flat(0, {p->real_count()}), 1);
          for (const Tensor& grad : norm_grads(slices.params).counted)
            for (const float g : grad.to_host<float>(stream)) counted += g;
        }
      for (const Parameter* p : alone.params.params()) {
        const int64_t count = p->full_shape().count();
        want_counted += double(count);
        std::set<int> copies(held[p->name].begin(), held[p->name].begin() + count);
        if (p->name == "norm") CHECK(copies == std::set{ranks});
        for (const char* split : {"proj", "gate_up", "down", "table"})
          if (p->name == split) CHECK(copies == std::set{1});
        // Two key heads of eight query heads: one rank each of a pair, four or eight.
        if (p->name == "qkv" || p->name == "bias")
          CHECK(copies == (ranks == 2 ? std::set{1} : std::set{1, ranks / 2}));
      }
      CHECK(counted == want_counted);
    }
}

TEST_CASE("weights come through a small buffer, and a rank reads each that it owns once") {
  const auto device = Device::cpu(2, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  struct Row {
    DType compute;
    bool masters = true;
  };
  for (const Row& row : {Row{DType::f32}, Row{DType::bf16}, Row{DType::bf16, false}})
    for (const int ranks : {1, 2, 4})
      for (const int owners : {1, 3})
        for (const bool sharded : {false, true}) {
          CAPTURE(row.compute, row.masters, ranks, owners, sharded);
          const Sharding sharding{owners, owners - 1, sharded, sharded, 40};
          Slices slices(stream, ranks, ranks - 1, sharding, row.compute, row.masters);
          ParamUploader uploader(stream, 2 * 7 * 4);  // halves of seven elements
          // Weights without an exact value in bf16.
          const auto weight = [](int64_t i) { return 1000.5f + float(i); };
          for (const Parameter* p : slices.params.params()) {
            std::vector<int> reads(size_t(p->full_shape().count()));
            uploader.set_weights(*p, [&](int64_t first, int64_t count, float* values) {
              CHECK((count > 0 && count <= 7));
              for (int64_t i = 0; i < count; ++i) {
                values[i] = weight(first + i);
                ++reads[size_t(first + i)];
              }
            });
            std::vector<int> owned(reads.size());
            for (const OwnedPart& part : owned_parts(*p)) {
              const auto values_of = [&](const Tensor& t) {
                return t.flat(part.in_range, {part.count}).to_host_float(stream);
              };
              const auto weights = values_of(part.range->weights());
              const auto halves =
                  part.range->value ? values_of(part.range->value) : std::vector<float>();
              for (int64_t i = 0; i < part.count; ++i) {
                const int64_t at = p->full_index(part.in_param + i);
                ++owned[size_t(at)];
                const float want = weight(at), half = float(bf16(want));
                if (weights[size_t(i)] != (part.range->master ? want : half)) FAIL(p->name << at);
                if (!halves.empty() && halves[size_t(i)] != half) FAIL(p->name << " " << at);
              }
            }
            CHECK(reads == owned);
          }
        }
}

}  // namespace model_parameters_test
