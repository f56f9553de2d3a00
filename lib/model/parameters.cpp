#include "model/parameters.h"

#include <algorithm>

#include "base/math.h"
#include "base/rng.h"
#include "ops/ops.h"

namespace mtrain {

namespace {
constexpr int64_t kAlign = 128;  // elements: every parameter starts on a cache line in either
                                 // dtype, and on a 256-byte GPU sector
}

Parameter* ParamStore::add(const std::string& unit, ParamSpec spec) {
  MT_CHECK(!find(spec.name), "parameter {} declared twice", spec.name);
  auto at = std::ranges::find(units_, unit, &ParamUnit::name);
  if (at == units_.end()) {
    units_.push_back({.name = unit});
    at = units_.end() - 1;
  }
  params_.push_back({});
  static_cast<ParamSpec&>(params_.back()) = std::move(spec);
  at->params.push_back(&params_.back());
  return &params_.back();
}

void ParamStore::materialize(Stream& on, DType compute, bool training) {
  for (ParamUnit& unit : units_) {
    std::ranges::stable_partition(unit.params, &Parameter::decay);
    int64_t count = 0;
    for (Parameter* p : unit.params) {
      count += round_up(p->shape.count(), kAlign);
      if (p->decay) unit.decay_end = count;
    }
    unit.value = Tensor::empty(on, {count}, compute, MemoryCategory::params);
    unit.master = compute == DType::f32 ? unit.value
                  : training ? Tensor::empty(on, {count}, DType::f32, MemoryCategory::optimizer)
                             : Tensor();
    ops::fill(on, unit.value, 0);
    if (unit.master && compute != DType::f32) ops::fill(on, unit.master, 0);
    if (training) {
      unit.grad = Tensor::empty(on, {count}, DType::f32, MemoryCategory::grads);
      ops::fill(on, unit.grad, 0);
    }
    int64_t first = 0;
    for (Parameter* p : unit.params) {
      p->value = unit.value.flat(first, p->shape);
      if (unit.master) p->master = unit.master.flat(first, p->shape);
      if (training) p->grad = unit.grad.flat(first, p->shape);
      first += round_up(p->shape.count(), kAlign);
    }
  }
}

void ParamStore::initialize(Stream& on, uint64_t seed) {
  for (Parameter& p : params_) {
    const int64_t count = p.shape.count() / p.shape[0] * p.real_rows();
    const Tensor real = p.master ? p.master.flat(0, {count})
                                 : Tensor::empty(on, {count}, DType::f32, MemoryCategory::buffers);
    if (p.init == Init::normal)
      ops::fill_normal(on, real, rng_key(seed, p.name), p.std);
    else
      ops::fill(on, real, p.init == Init::ones ? 1.0f : 0.0f);
    if (p.value.dtype() != DType::f32) ops::cast(on, real, p.value.flat(0, {count}));
  }
}

void ParamStore::set_master(Stream& on, Parameter& p, const std::vector<float>& values) {
  const int64_t row = p.shape.count() / p.shape[0], count = row * p.real_rows();
  MT_CHECK(int64_t(values.size()) == count, "{} values for {} of {}", values.size(), p.name,
           p.shape.str());
  auto keep = std::make_shared<std::vector<float>>(values);
  const void* data = keep->data();
  if (p.master) {
    const Tensor real = p.master.flat(0, {count});
    on.upload(real, std::move(keep), data);
    if (p.value.dtype() != DType::f32) ops::cast(on, real, p.value.flat(0, {count}));
  } else {
    const Tensor staged = Tensor::empty(on, {count}, DType::f32, MemoryCategory::buffers);
    on.upload(staged, std::move(keep), data);
    ops::cast(on, staged, p.value.flat(0, {count}));
  }
}

void ParamStore::zero_grads(Stream& on) {
  for (Parameter& p : params_) {
    p.fresh = p.matmul_grad;
    if (!p.matmul_grad) ops::fill(on, p.grad, 0);
  }
}

std::vector<ParamUnit*> ParamStore::units() {
  std::vector<ParamUnit*> out;
  for (auto& u : units_) out.push_back(&u);
  return out;
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

}  // namespace mtrain
