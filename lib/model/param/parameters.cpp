#include "model/param/parameters.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/math.h"
#include "base/rng.h"
#include "model/param/param_uploader.h"
#include "ops/elementwise.h"

namespace mtrain::model {

namespace {
// In elements. Every parameter starts on a cache line in either dtype, and on 256 bytes for a GPU.
constexpr int64_t kAlign = 128;
// In elements. Every rank's part of a piece starts on a cache line in bf16.
constexpr int64_t kPartAlign = 32;

// Divides parameters into pieces from their end, where backward begins. The remainder is the first
// piece, which backward completes last: its reduction, which has little to hide behind, is then a
// small one.
std::vector<Piece> pieces_of(const std::vector<Parameter*>& params, int64_t least) {
  std::vector<Piece> pieces;
  int64_t count = 0;
  for (size_t i = params.size(); i-- > 0;) {
    if (pieces.empty() || count >= least) {
      pieces.emplace_back();
      count = 0;
    }
    pieces.back().params.push_back(params[i]);
    count += params[i]->shape.count();
  }
  std::ranges::reverse(pieces);
  for (Piece& p : pieces) {
    std::ranges::reverse(p.params);
    std::ranges::stable_partition(p.params, &Parameter::decays);
  }
  return pieces;
}

// Weights in 8 bits are separate whether or not they are gathered in 8 bits. The optimizer then
// sees the same ranges, and the gradient norm has the same bits.
std::vector<Piece> pieces_of(const ParamUnit& unit) {
  const Sharding& s = unit.sharding;
  std::vector<Piece> pieces;
  for (const bool quantized : {false, true})
    for (const bool frozen : {false, true}) {
      std::vector<Parameter*> of_kind;
      for (Parameter* p : unit.params)
        if ((s.ranks > 1 && p->quantized) == quantized && p->frozen == frozen) of_kind.push_back(p);
      for (Piece& piece : pieces_of(of_kind, s.piece)) {
        piece.frozen = frozen;
        pieces.push_back(std::move(piece));
      }
    }
  return pieces;
}

// Finds where in the unit every piece and parameter begins.
void lay_out_unit(ParamUnit& unit) {
  unit.pieces = pieces_of(unit);
  const int64_t whole = std::lcm(kAlign, kPartAlign * unit.sharding.ranks);
  unit.count = unit.trained_count = 0;
  for (Piece& piece : unit.pieces) {
    piece.begin = piece.decay_end = unit.count;
    for (Parameter* p : piece.params) {
      p->begin = unit.count;
      unit.count += round_up(p->shape.count(), kAlign);
      if (p->decays()) piece.decay_end = unit.count;
    }
    unit.count = piece.begin + round_up(unit.count - piece.begin, whole);
    piece.count = unit.count - piece.begin;
    if (!piece.frozen) unit.trained_count = unit.count;
  }
  const auto quantized =
      std::ranges::find_if(unit.pieces, [](const Piece& p) { return p.params.front()->quantized; });
  const bool separate = unit.sharding.ranks > 1 && quantized != unit.pieces.end();
  unit.quantized_begin = separate ? quantized->begin : unit.count;
}

Tensor zeros(Stream& stream, int64_t count, DType dtype, device::MemoryCategory category) {
  if (count == 0) return {};
  const Tensor t = Tensor::empty(stream, {count}, dtype, category);
  ops::fill(stream, t, 0);
  return t;
}

void allocate(Stream& stream, ParamUnit& unit, DType compute, bool training, bool masters,
              const ParamStore::ValueMemory& memory) {
  const Sharding& s = unit.sharding;
  const auto full = [&](int64_t count, DType dtype) {
    const Tensor t = memory && s.ranks > 1 ? memory(unit, count, dtype) : Tensor();
    if (!t) return zeros(stream, count, dtype, device::MemoryCategory::params);
    ops::fill(stream, t, 0);
    return t;
  };
  const bool half = compute != DType::f32;
  constexpr auto kParams = device::MemoryCategory::params;
  if (s.values || s.quantized) unit.own_value = zeros(stream, unit.own_count(), compute, kParams);
  Tensor quantized;
  if (s.quantized) {
    unit.own_quantized = zeros(stream, unit.quantized_count() / s.ranks, *s.quantized, kParams);
    if (!s.values) quantized = full(unit.quantized_count(), *s.quantized);
  }
  if (!s.values) ParamStore::set_value(unit, full(unit.plain_count(), compute), quantized);
  if (half && training && masters)
    unit.own_master =
        zeros(stream, unit.trained_count / s.ranks, DType::f32, device::MemoryCategory::optimizer);
  if (!training) return;
  if (s.grads)
    unit.own_grad =
        zeros(stream, unit.trained_count / s.ranks, DType::f32, device::MemoryCategory::grads);
  else
    ParamStore::set_grad(
        unit, zeros(stream, unit.trained_count, DType::f32, device::MemoryCategory::grads));
}

void find_owned(ParamUnit& unit, DType compute) {
  const auto& s = unit.sharding;
  for (const Piece& piece : unit.pieces) {
    const int64_t n = piece.count / s.ranks, begin = piece.begin + s.rank * n;
    const auto add = [&](int64_t from, int64_t to) {
      if (from >= to) return;
      const auto range = [&](const Tensor& whole, const Tensor& own) {
        if (own) return own.flat(piece.begin / s.ranks + from - begin, {to - from});
        return whole ? whole.flat(from, {to - from}) : Tensor();
      };
      const Tensor value = range(unit.value, unit.own_value),
                   grad = piece.frozen ? Tensor() : range(unit.grad, unit.own_grad),
                   master = piece.frozen ? Tensor() : range({}, unit.own_master);
      const bool half = compute != DType::f32;
      unit.owned.push_back({.begin = from,
                            .count = to - from,
                            .master = half ? master : value,
                            .grad = grad,
                            .value = half ? value : Tensor()});
    };
    const int64_t decay_end = std::clamp(piece.decay_end, begin, begin + n);
    add(begin, decay_end);
    add(decay_end, begin + n);
  }
}

void set_views(ParamUnit& unit, const Tensor& flat, Tensor Parameter::*which) {
  // Gradients and master weights end before the frozen parameters.
  for (Parameter* p : unit.params)
    p->*which = p->begin < flat.count() ? flat.flat(p->begin, p->shape) : Tensor();
}

}  // namespace

std::vector<ShardSpec::Section> sections_of(const spec::TensorSpec& tensor) {
  std::vector<ShardSpec::Section> sections;
  for (const spec::RowSection& s : tensor.split.sections) sections.push_back({s.units, s.width});
  return sections;
}

ParamSpec part_of(const spec::TensorSpec& t, ShardSpec shard, ExpertShard experts) {
  ParamSpec p{.name = t.name,
              .shape = t.full_shape,
              .init = t.init,
              .std = t.std,
              .role = t.role,
              .rows = t.split.padded ? t.full_shape[0] : -1,
              .matmul_grad = t.role != TensorRole::vector,
              .shard = std::move(shard),
              .experts = experts,
              .frozen = t.frozen,
              .adapter = t.adapter};
  if (t.role == TensorRole::matrix)
    for (const spec::RowSection& s : t.split.sections) p.stacked.push_back(s.count());
  if (t.split.experts) p.shape[0] = exact_div(p.shape[0], int64_t(experts.ranks));
  int64_t& columns = p.shape[p.shape.rank() - 1];
  if (p.shard.dim == ShardSpec::Dim::columns) columns = exact_div(columns, int64_t(p.shard.ranks));
  if (p.shard.dim != ShardSpec::Dim::rows) return p;
  int64_t& rows = p.shape[p.row_dim()];
  rows = 0;
  for (const ShardSpec::Section& s : p.shard.sections) rows += s.rows_here(p.shard.ranks);
  return p;
}

Tensor ParamUnit::shard_in_full(const Tensor& t, const Piece& p) const {
  const int64_t n = p.count / sharding.ranks;
  return t.flat(p.begin + sharding.rank * n, {n});
}
Tensor ParamUnit::local_shard(const Tensor& t, const Piece& p) const {
  return t.flat(p.begin / sharding.ranks, {p.count / sharding.ranks});
}
Tensor ParamUnit::full_quantized(const Tensor& t, const Piece& p) const {
  return t.flat(p.begin - plain_count(), {p.count});
}
Tensor ParamUnit::local_quantized(const Tensor& t, const Piece& p) const {
  return t.flat((p.begin - plain_count()) / sharding.ranks, {p.count / sharding.ranks});
}

Shape ParamSpec::part_shape() const {
  Shape part = shape;
  if (shard.dim == ShardSpec::Dim::rows) {
    part[row_dim()] = 0;
    for (const ShardSpec::Section& s : shard.sections) part[row_dim()] += s.units * s.width;
  }
  if (shard.dim == ShardSpec::Dim::columns) part[row_dim() + 1] *= shard.ranks;
  if (rows >= 0) part[row_dim()] = rows;
  return part;
}

Shape ParamSpec::full_shape() const {
  Shape whole = part_shape();
  whole[0] *= experts.ranks;
  return whole;
}

std::vector<RowShard> ParamSpec::rows_here() const {
  const int64_t of_matrix = part_shape()[row_dim()];
  // Whole rows of neighbouring matrices are neighbours, too.
  if (shard.dim != ShardSpec::Dim::rows) return rows_of(shard, matrices() * of_matrix, shard.rank);
  std::vector<RowShard> all;
  for (int64_t m = 0; m < matrices(); ++m)
    for (RowShard r : rows_of(shard, of_matrix, shard.rank)) {
      r.here += m * shape[row_dim()], r.full += m * of_matrix;
      all.push_back(r);
    }
  return all;
}

std::vector<ElementRun> ParamSpec::matrix_runs(int rank) const {
  return runs_of(shard, part_shape()[row_dim()], columns(), rank);
}

std::vector<ElementRun> ParamSpec::runs(int rank) const {
  const int64_t part = part_shape().count(), whole = part / matrices(),
                here = shape.count() / matrices();
  std::vector<ElementRun> all;
  for (int64_t m = 0; m < matrices(); ++m)
    for (ElementRun r : matrix_runs(rank)) {
      r.here += m * here, r.full += m * whole + experts.rank * part;
      const bool continues_run = !all.empty() && all.back().replica == r.replica &&
                                 all.back().here + all.back().count == r.here &&
                                 all.back().full + all.back().count == r.full;
      if (continues_run)
        all.back().count += r.count;
      else
        all.push_back(r);
    }
  return all;
}

int64_t ParamSpec::full_index(int64_t here) const {
  for (const ElementRun& r : runs())
    if (here >= r.here && here < r.here + r.count) return r.full + here - r.here;
  throw BugError(fmt::format("element {} of {} {} is padding", here, name, shape.str()));
}

int64_t Parameter::real_rows() const {
  int64_t n = 0;
  for (const RowShard& r : rows_here()) n += r.count;
  return n;
}

std::string unit_name(UnitId id) {
  switch (id.kind) {
    case UnitKind::embedding: return "embedding";
    case UnitKind::positions: return "positions";
    case UnitKind::layer: return fmt::format("layers.{}", id.layer);
    case UnitKind::experts: return fmt::format("layers.{}.experts", id.layer);
    case UnitKind::output: return "output";
  }
  throw BugError("an unknown UnitKind");
}

Parameter* ParamStore::add(UnitId id, ParamSpec spec) {
  MT_CHECK(!find(spec.name), "parameter {} declared twice", spec.name);
  ParamUnit* in = unit(id);
  if (!in) {
    units_.push_back({.id = id, .name = unit_name(id), .stage = stage_});
    in = &units_.back();
  }
  params_.push_back({});
  static_cast<ParamSpec&>(params_.back()) = std::move(spec);
  params_.back().unit = in;
  in->params.push_back(&params_.back());
  return &params_.back();
}

void ParamStore::materialize(Stream& stream, DType compute, bool training, const Sharding& sharding,
                             bool masters) {
  materialize_by_unit(
      stream, compute, training, [&](const ParamUnit&) { return sharding; }, masters);
}

void ParamStore::materialize_by_unit(Stream& stream, DType compute, bool training,
                                     const std::function<Sharding(const ParamUnit&)>& sharding,
                                     bool masters, const ValueMemory& memory) {
  for (ParamUnit& unit : units_) {
    unit.sharding = sharding(unit);
    lay_out_unit(unit);
    const DType values = unit.in_fp32 ? DType::f32 : compute;
    for (Parameter* p : unit.params) p->compute = values;
    allocate(stream, unit, values, training, masters, memory);
    find_owned(unit, values);
    // Parameters have views of their master weights if these are whole.
    const Tensor whole = values == DType::f32       ? unit.value
                         : unit.sharding.ranks == 1 ? unit.own_master
                                                    : Tensor();
    set_views(unit, whole, &Parameter::master);
  }
}

void ParamStore::lay_out(const std::function<Sharding(const ParamUnit&)>& sharding) {
  for (ParamUnit& unit : units_) {
    unit.sharding = sharding(unit);
    lay_out_unit(unit);
    find_owned(unit, DType::f32);
  }
}

void ParamStore::set_value(ParamUnit& unit, const Tensor& value, const Tensor& quantized) {
  unit.value = value;
  unit.quantized_value = quantized;
  for (Parameter* p : unit.params) {
    const bool in_8_bits = p->begin >= unit.plain_count();
    p->value = value && !in_8_bits ? value.flat(p->begin, p->shape) : Tensor();
    p->quantized_value =
        quantized && in_8_bits ? quantized.flat(p->begin - unit.plain_count(), p->shape) : Tensor();
  }
}

void ParamStore::set_grad(ParamUnit& unit, const Tensor& grad) {
  unit.grad = grad;
  set_views(unit, grad, &Parameter::grad);
}

Tensor vector_grad(Stream& stream, const Parameter& p) {
  if (!p.frozen) return p.grad;
  const Tensor unread = Tensor::empty(stream, p.shape, DType::f32, device::MemoryCategory::buffers);
  ops::fill(stream, unread, 0);
  return unread;
}

std::vector<OwnedPart> owned_parts(const Parameter& p) {
  std::vector<OwnedPart> parts;
  for (const OwnedRange& range : p.unit->owned) {
    const int64_t begin = std::max(p.begin, range.begin),
                  end = std::min(p.begin + p.real_count(), range.begin + range.count);
    if (begin < end) parts.push_back({&range, begin - p.begin, begin - range.begin, end - begin});
  }
  return parts;
}

NormGrads norm_grads(ParamStore& params) {
  NormGrads grads;
  for (const ParamUnit* unit : params.units()) {
    // Ranges [begin, end) of the unit's elements that another rank counts.
    std::vector<std::pair<int64_t, int64_t>> others;
    for (const Piece& piece : unit->pieces)
      for (const Parameter* p : piece.params)
        for (const RowShard& r : p->rows_here())
          if (p->copy || r.replica > 0 || !unit->sharding.in_norm)
            others.emplace_back(p->begin + r.here * p->columns(),
                                p->begin + (r.here + r.count) * p->columns());
    for (const OwnedRange& range : unit->owned) {
      const int64_t range_end = range.begin + range.count;
      if (!range.grad) continue;
      int64_t at = range.begin;
      const auto take_to = [&](int64_t end, std::vector<Tensor>& into) {
        end = std::min(end, range_end);
        if (at < end) into.push_back(range.grad.flat(at - range.begin, {end - at}));
        at = std::max(at, end);
      };
      for (const auto& [begin, end] : others) {
        if (end <= at || begin >= range_end) continue;
        take_to(begin, grads.counted);
        take_to(end, grads.copies);
      }
      take_to(range_end, grads.counted);
    }
  }
  return grads;
}

namespace {
// Lets `fill` write a part's values in fp32, into the master weights if there are any. Then writes
// the values in the compute dtype. Frozen parts have no master weights: they go through a buffer,
// some elements at a time.
void write_part(Stream& stream, const OwnedPart& part,
                const std::function<void(const OwnedPart&, const Tensor&)>& fill) {
  constexpr int64_t kBuffer = 1 << 20;
  const bool master = bool(part.range->master);
  const int64_t most = master ? part.count : std::min(part.count, kBuffer);
  Tensor buffer;
  if (!master) buffer = Tensor::empty(stream, {most}, DType::f32, device::MemoryCategory::buffers);
  for (int64_t done = 0; done < part.count; done += most) {
    OwnedPart some = part;
    some.in_param += done, some.in_range += done;
    some.count = std::min(most, part.count - done);
    const auto at = [&](const Tensor& t) { return t.flat(some.in_range, {some.count}); };
    const Tensor to = master ? at(part.range->master) : buffer.flat(0, {some.count});
    fill(some, to);
    if (part.range->value) ops::cast(stream, to, at(part.range->value));
  }
}

// Adapters alone have uniform numbers. They are few, so the host computes them.
void fill_random(Stream& stream, const Tensor& to, const Parameter& p, uint64_t key,
                 int64_t first) {
  if (p.init == Init::normal) return ops::fill_normal(stream, to, key, first, p.std);
  const auto values = std::make_shared<std::vector<float>>(size_t(to.count()));
  for (int64_t i = first; i < first + to.count();) {
    const auto four = Philox::block(key, uint64_t(i) / 4);
    for (int64_t lane = i % 4; lane < 4 && i < first + to.count(); ++lane, ++i)
      (*values)[size_t(i - first)] = p.std * (float(four[size_t(lane)] >> 8) * 0x1p-23f - 1);
  }
  stream.upload(to, values, values->data());
}
}  // namespace

void ParamStore::initialize(Stream& stream, uint64_t seed) {
  for (Parameter& p : params_) {
    const bool random = p.init == Init::normal || p.init == Init::uniform;
    const auto runs = random ? p.runs() : std::vector<ElementRun>();
    for (const OwnedPart& owned : owned_parts(p))
      write_part(stream, owned, [&](const OwnedPart& part, const Tensor& to) {
        if (p.init == Init::zeros || p.init == Init::ones)
          return ops::fill(stream, to, p.init == Init::ones ? 1.0f : 0.0f);
        for (const ElementRun& r : runs) {
          const int64_t begin = std::max(r.here, part.in_param),
                        end = std::min(r.here + r.count, part.in_param + part.count);
          if (begin < end)
            fill_random(stream, to.flat(begin - part.in_param, {end - begin}), p,
                        rng_key(seed, p.name), r.full + begin - r.here);
        }
      });
  }
}

void ParamStore::set_master(Stream& stream, const Parameter& p, const std::vector<float>& values) {
  MT_CHECK(int64_t(values.size()) == p.full_shape().count(), "{} values for {} of {}",
           values.size(), p.name, p.full_shape().str());
  const int64_t bytes = p.full_shape().count() * int64_t(sizeof(float));
  ParamUploader uploader(stream, std::clamp<int64_t>(2 * bytes, 8, ParamUploader::kBufferBytes));
  uploader.set_weights(p, [&](int64_t first, int64_t count, float* to) {
    std::copy_n(values.begin() + first, count, to);
  });
}

void ParamStore::zero_grads(Stream& stream) {
  for (ParamUnit& unit : units_)
    if (unit.grad) zero_grads(stream, unit);
}

void ParamStore::zero_grads(Stream& stream, ParamUnit& unit) {
  for (Parameter* p : unit.params) zero_grad(stream, *p);
}

void ParamStore::zero_grad(Stream& stream, Parameter& p) {
  if (p.frozen) return;
  p.fresh = p.matmul_grad;
  if (!p.matmul_grad) ops::fill(stream, p.grad, 0);
}

std::vector<ParamUnit*> ParamStore::units() {
  std::vector<ParamUnit*> out;
  for (auto& u : units_) out.push_back(&u);
  return out;
}

ParamUnit* ParamStore::unit(UnitId id) {
  const auto at = std::ranges::find(units_, id, &ParamUnit::id);
  return at == units_.end() ? nullptr : &*at;
}

std::vector<Parameter*> ParamStore::params() {
  std::vector<Parameter*> out;
  for (auto& p : params_) out.push_back(&p);
  return out;
}

Parameter* ParamStore::find(const std::string& name) {
  const auto at = std::ranges::find(params_, name, &Parameter::name);
  return at == params_.end() ? nullptr : &*at;
}

}  // namespace mtrain::model
