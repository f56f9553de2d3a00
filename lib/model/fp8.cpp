#include "model/fp8.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.h"

namespace mtrain {

int64_t Float8Scaling::add(const std::string& name) {
  MT_CHECK(!all_.amax_C, "{} is declared after the scales have memory", name);
  linears_.push_back(name);
  return int64_t(linears_.size()) - 1;
}

int64_t Float8Scaling::index(int64_t linear, Role role) const {
  if (role == Role::gradient) return 2 * int64_t(linears_.size()) + linear;
  return 2 * linear + (role == Role::weight ? 1 : 0);
}

std::string Float8Scaling::name(int64_t index) const {
  const auto both = 2 * int64_t(linears_.size());
  if (index >= both) return linears_[size_t(index - both)] + ".gradient";
  return linears_[size_t(index / 2)] + (index % 2 ? ".weight" : ".input");
}

void Float8Scaling::materialize(Stream& on) {
  if (!options_.delayed || linears_.empty()) return;
  const auto make = [&](Shape shape, float value) {
    const Tensor t = Tensor::empty(on, shape, DType::f32, MemoryCategory::buffers);
    ops::fill(on, t, value);
    return t;
  };
  const int64_t C = tensors();
  all_ = {make({C}, 0), make({C, options_.history}, 0), make({C}, 1), make({C}, 1)};
}

ops::DelayedScales Float8Scaling::range(int64_t begin, int64_t end) const {
  return {all_.amax_C.rows(begin, end), all_.history_CL.rows(begin, end),
          all_.scale_C.rows(begin, end), all_.inverse_C.rows(begin, end)};
}

ops::Float8Tensor Float8Scaling::quantize(Stream& on, int64_t linear, Role role, const Tensor& x,
                                          bool transposed, bool record) {
  const int64_t i = index(linear, role);
  Tensor amax;
  ops::Float8Scale scale;
  if (options_.delayed) {
    const ops::DelayedScales own = range(i, i + 1);
    if (record) amax = own.amax_C;
    if (has_history_) scale = {own.scale_C, own.inverse_C};
  }
  if (!scale.scale) scale = ops::current_scale(on, x, type(role), options_.margin);
  return transposed ? ops::quantize_transposed(on, x, type(role), scale, amax)
                    : ops::quantize(on, x, type(role), scale, amax);
}

void Float8Scaling::end_step(Stream& on, const std::function<void(const Tensor&)>& over_ranks) {
  if (!all_.amax_C) return;
  over_ranks(all_.amax_C);
  const auto both = 2 * int64_t(linears_.size());
  const auto update = [&](const ops::DelayedScales& of, Role role) {
    ops::update_scales(on, of, place_, options_.most_recent, type(role), options_.margin);
  };
  update(range(0, both), Role::input);
  update(range(both, tensors()), Role::gradient);
  place_ = (place_ + 1) % options_.history;
  has_history_ = true;
}

// A line: name, scale, and the history, oldest first; as hexadecimal floats, which are exact.
std::string Float8Scaling::state(Stream& on) const {
  if (!has_history_) return "";
  const auto scales = all_.scale_C.to_host<float>(on), history = all_.history_CL.to_host<float>(on);
  std::string text;
  const int64_t L = options_.history;
  for (int64_t i = 0; i < tensors(); ++i) {
    text += fmt::format("{} {:a}", name(i), scales[size_t(i)]);
    for (int64_t l = 0; l < L; ++l)
      text += fmt::format(" {:a}", history[size_t(i * L + (place_ + l) % L)]);
    text += "\n";
  }
  return text;
}

void Float8Scaling::restore(Stream& on, const std::string& state) {
  if (!all_.amax_C || state.empty()) return;
  std::map<std::string, std::vector<float>> saved;
  std::istringstream lines(state);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, word;
    words >> key;
    while (words >> word) saved[key].push_back(std::strtof(word.c_str(), nullptr));
  }
  const int64_t C = tensors(), L = options_.history;
  std::vector<float> scales, inverses, history(size_t(C * L));
  int64_t known = 0;  // steps; of a longer history the last
  for (int64_t i = 0; i < C; ++i) {
    const auto own = saved.find(name(i));
    if (own == saved.end() || own->second.size() < 2 || !(own->second[0] > 0))
      throw UserError(fmt::format("the checkpoint has 8-bit scales, but none of {}", name(i)),
                      "load a checkpoint of the same model, or set mixed_precision.fp8_recipe: "
                      "tensorwise");
    const std::vector<float>& values = own->second;
    scales.push_back(values[0]);
    inverses.push_back(1.0f / values[0]);
    known = std::min(L, int64_t(values.size()) - 1);
    std::copy(values.end() - known, values.end(), history.begin() + i * L);
  }
  all_.amax_C = Tensor::from_host(on, {C}, std::vector<float>(size_t(C)));
  all_.history_CL = Tensor::from_host(on, {C, L}, history);
  all_.scale_C = Tensor::from_host(on, {C}, scales);
  all_.inverse_C = Tensor::from_host(on, {C}, inverses);
  place_ = known % L;
  has_history_ = true;
}

}  // namespace mtrain
