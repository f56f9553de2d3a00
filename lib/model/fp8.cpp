#include "model/fp8.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/math.h"
#include "device/device.h"
#include "kernels/matmul.h"

namespace mtrain::model {

namespace {
// Throws while a graph is captured. A graph is replayed for every micro-batch, but the scales and
// copies of weights are made once a step.
void refuse_capture(Stream& stream) {
  if (stream.device().capture())
    throw RunError("8-bit copies or scales of weights cannot be made within a graph");
}
}  // namespace

int64_t Float8Scaling::add(const std::string& name, const Parameter& weight) {
  MT_CHECK(!materialized_, "{} is declared after materialize()", name);
  linears_.push_back(name);
  weights_.push_back({.parameter = &weight});
  Weight& w = weights_.back();
  MT_CHECK(!w.of_experts() || !in_blocks(), "{}: experts have one scale for a tensor", name);
  w.place = (w.of_experts() ? of_experts_ : of_layers_)++;
  return int64_t(linears_.size()) - 1;
}

int64_t Float8Scaling::index(int64_t linear, Role role) const {
  const Weight& w = weights_[size_t(linear)];
  const int64_t D = of_layers_, X = of_experts_, operand = 2 * w.place + (role == Role::weight);
  if (w.of_experts()) return 3 * D + (role == Role::gradient ? w.place : X + operand);
  return role == Role::gradient ? 2 * D + w.place : operand;
}

std::string Float8Scaling::name(int64_t linear, Role role) const {
  constexpr std::array kRoleNames{".input", ".weight", ".gradient"};
  return linears_[size_t(linear)] + kRoleNames[size_t(role)];
}

void Float8Scaling::materialize(Stream& stream) {
  materialized_ = true;
  if (in_blocks()) return materialize_blocks(stream);
  const auto make = [&](Shape shape, DType type) {
    return Tensor::empty(stream, shape, type, device::MemoryCategory::buffers);
  };
  const DType type = this->type(Role::weight);
  for (Weight& w : weights_) {
    const int64_t O = w.rows(), I = w.columns();
    w.scale = {make({1}, DType::f32), make({1}, DType::f32)};
    if (options_.keep_weights || (options_.keep_transposed && w.of_experts()))
      w.copy.data = make({O, I}, type);
    if (options_.keep_transposed && !w.of_experts())
      w.transposed.data = make({I, round_up(O, kFloat8Multiple)}, type);
  }
  if (linears_.empty()) return;
  const int64_t C = tensors();
  if (!options_.delayed) {
    written_amax_C_ = make({C}, DType::f32);
    ops::fill(stream, written_amax_C_, 0);
    return;
  }
  all_ = {make({C}, DType::f32), make({C, options_.history}, DType::f32), make({C}, DType::f32),
          make({C}, DType::f32)};
  for (const Tensor& none : {all_.amax_C, all_.history_CL}) ops::fill(stream, none, 0);
  for (const Tensor& neutral : {all_.scale_C, all_.inverse_C}) ops::fill(stream, neutral, 1);
  unseen_.assign(size_t(C), false);
  std::fill(unseen_.begin() + 3 * of_layers_, unseen_.end(), true);
}

void Float8Scaling::materialize_blocks(Stream& stream) {
  const auto make = [&](int64_t R, int64_t K) {
    return ops::blocks_of(stream, R, K, type(Role::weight), options_.weight_blocks,
                          device::MemoryCategory::buffers);
  };
  const int64_t length = block_length(options_.weight_blocks);
  for (Weight& w : weights_) {
    const int64_t O = w.rows(), I = w.columns();
    if (options_.keep_weights) w.copy = make(O, I);
    if (options_.keep_transposed) w.transposed = make(I, round_up(O, length));
  }
}

ops::DelayedScales Float8Scaling::range(int64_t begin, int64_t end) const {
  return {all_.amax_C.rows(begin, end), all_.history_CL.rows(begin, end),
          all_.scale_C.rows(begin, end), all_.inverse_C.rows(begin, end)};
}

ops::Float8Scale Float8Scaling::delayed_scale(int64_t index) const {
  const ops::DelayedScales own = range(index, index + 1);
  return {own.scale_C, own.inverse_C};
}

Tensor Float8Scaling::amax(int64_t index, bool record) const {
  return record && options_.delayed ? range(index, index + 1).amax_C : Tensor();
}

ops::Float8Scale Float8Scaling::scale(Stream& stream, int64_t linear, Role role, const Tensor& x) {
  if (in_blocks()) return {};
  if (const int64_t i = index(linear, role); has_history(i)) return delayed_scale(i);
  return ops::current_scale(stream, x, type(role), options_.margin);
}

ops::Float8Write Float8Scaling::write(int64_t linear, Role role, bool record) const {
  const int64_t i = index(linear, role);
  if (written_amax_C_) return {.amax = written_amax_C_.rows(i, i + 1)};
  if (!has_history(i)) return {};
  return {.amax = amax(i, record), .scale = delayed_scale(i), .type = type(role)};
}

ops::Float8Scale Float8Scaling::scale_of_written(Stream& stream, Role role,
                                                 const Tensor& amax) const {
  return ops::scale_from_amax(stream, amax, type(role), options_.margin);
}

ops::Float8Tensor Float8Scaling::quantize(Stream& stream, int64_t linear, Role role,
                                          const Tensor& x, const ops::Float8Scale& scale,
                                          bool transposed, bool record) {
  if (in_blocks())
    return transposed ? ops::quantize_blocks_transposed(stream, x, type(role), options_.blocks)
                      : ops::quantize_blocks(stream, x, type(role), options_.blocks);
  const Tensor amax = this->amax(index(linear, role), record);
  return transposed ? ops::quantize_transposed(stream, x, type(role), scale, amax)
                    : ops::quantize(stream, x, type(role), scale, amax);
}

ops::Float8Pair Float8Scaling::quantize_both(Stream& stream, int64_t linear, Role role,
                                             const Tensor& x, const ops::Float8Scale& scale,
                                             bool record) {
  if (in_blocks()) return ops::quantize_blocks_both(stream, x, type(role), options_.blocks);
  return ops::quantize_both(stream, x, type(role), scale, amax(index(linear, role), record));
}

ops::Float8Scale Float8Scaling::weight_scale(Stream& stream, int64_t linear) {
  if (const int64_t i = index(linear, Role::weight); has_history(i)) return delayed_scale(i);
  Weight& w = weights_.at(size_t(linear));
  if (w.has_scale) return w.scale;
  refuse_capture(stream);
  ops::current_scale_into(stream, w.parameter->value, type(Role::weight), options_.margin, w.scale);
  w.has_scale = true;
  return w.scale;
}

// With `both` the transpose is made together with the copy, if both are kept.
ops::Float8Tensor Float8Scaling::weight_in_blocks(Stream& stream, Weight& w, bool transposed,
                                                  bool both) {
  const Tensor& value = w.parameter->value;
  const ops::Float8Tensor& kept = transposed ? w.transposed : w.copy;
  const DType type = this->type(Role::weight);
  if (!kept.data)
    return transposed ? ops::quantize_blocks_transposed(stream, value, type, options_.weight_blocks)
                      : ops::quantize_blocks(stream, value, type, options_.weight_blocks);
  if (transposed ? w.has_transposed : w.has_copy) return kept;
  refuse_capture(stream);
  const ops::Float8Tensor copy = transposed ? ops::Float8Tensor{} : w.copy,
                          other = transposed || both ? w.transposed : ops::Float8Tensor{};
  ops::quantize_blocks_into(stream, value, copy, other);
  w.has_copy = w.has_copy || copy.data;
  w.has_transposed = w.has_transposed || other.data;
  return kept;
}

ops::Float8Tensor Float8Scaling::weight(Stream& stream, int64_t linear, bool transposed,
                                        bool record) {
  Weight& w = weights_.at(size_t(linear));
  if (in_blocks()) return weight_in_blocks(stream, w, transposed, record);
  MT_CHECK(!transposed || !w.of_experts(), "{} has no transpose", linears_[size_t(linear)]);
  const Tensor value = w.parameter->value.view({w.rows(), w.columns()}),
               &kept = transposed ? w.transposed.data : w.copy.data;
  const ops::Float8Scale scale = weight_scale(stream, linear);
  const Tensor amax = this->amax(index(linear, Role::weight), record);
  if (!kept)
    return transposed ? ops::quantize_transposed(stream, value, type(Role::weight), scale, amax)
                      : ops::quantize(stream, value, type(Role::weight), scale, amax);
  if ((transposed ? w.has_transposed : w.has_copy) && (w.recorded || !amax))
    return {kept, scale.inverse};
  refuse_capture(stream);
  // A training forward makes the transpose for its backward, too, so that the weight is read once.
  const Tensor copy = transposed ? Tensor() : w.copy.data,
               other = transposed || record ? w.transposed.data : Tensor();
  ops::quantize_into(stream, value, scale, copy, other, amax);
  w.has_copy = w.has_copy || copy;
  w.has_transposed = w.has_transposed || other;
  w.recorded = w.recorded || amax;
  return {kept, scale.inverse};
}

void Float8Scaling::prepare(Stream& stream) {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Weight& w = weights_[i];
    if (w.copy.data) weight(stream, int64_t(i), false, true);
    if (w.transposed.data) weight(stream, int64_t(i), true, false);
    if (!in_blocks()) weight_scale(stream, int64_t(i));
  }
}

void Float8Scaling::weights_changed() {
  for (Weight& w : weights_) w.has_copy = w.has_transposed = w.has_scale = w.recorded = false;
}

// The host waits for the maxima, in the first step and while some experts still lack rows.
void Float8Scaling::note_rows(Stream& stream) {
  if (!waits_for_rows()) return;
  const auto C = size_t(tensors());
  const auto amax = all_.amax_C.to_host<float>(stream);
  for (size_t i = 0; i < C; ++i) unseen_[i] = unseen_[i] && !(amax[i] > 0);
}

void Float8Scaling::end_step(
    Stream& stream, const std::function<void(const Tensor& amax, UnitKind of)>& over_ranks) {
  weights_changed();  // the update has changed the weights; new delayed scales are made below
  if (!all_.amax_C) return;
  const int64_t D = of_layers_, X = of_experts_;
  if (D > 0) over_ranks(range(0, 3 * D).amax_C, UnitKind::layer);
  if (X > 0) over_ranks(range(3 * D, tensors()).amax_C, UnitKind::experts);
  note_rows(stream);
  const auto update = [&](int64_t begin, int64_t end, Role role) {
    if (begin < end)
      ops::update_scales(stream, range(begin, end), history_index_, options_.most_recent,
                         type(role), options_.margin);
  };
  update(0, 2 * D, Role::input);
  update(2 * D, 3 * D + X, Role::gradient);
  update(3 * D + X, tensors(), Role::input);
  history_index_ = (history_index_ + 1) % options_.history;
  has_history_ = true;
}

namespace {

// The numbers of a layer's experts that a rank has: [first, end).
struct ExpertNumbers {
  int64_t first = 0, end = 0;
  bool meet(const ExpertNumbers& o) const { return first < o.end && o.first < end; }
};
ExpertNumbers experts_of(const Parameter& p) {
  const int64_t here = p.shape[0], first = p.experts.rank * here;
  return {first, first + here};
}

// What a checkpoint holds of a tensor, or of that of some experts.
struct SavedScale {
  ExpertNumbers experts;  // none of a tensor that is not of experts
  float scale = 0;
  std::vector<float> history;

  bool seen() const {
    return std::ranges::any_of(history, [](float amax) { return amax > 0; });
  }
};
using SavedScales = std::multimap<std::string, SavedScale>;

SavedScales read_scales(const std::string& text) {
  SavedScales saved;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, word;
    words >> key;
    SavedScale s;
    std::vector<float> values;
    while (words >> word) {
      if (const auto colon = word.find(':'); colon != std::string::npos)
        s.experts = {std::atoll(word.c_str()), std::atoll(word.c_str() + colon + 1)};
      else
        values.push_back(std::strtof(word.c_str(), nullptr));
    }
    if (values.size() < 2) continue;
    s.scale = values[0];
    s.history.assign(values.begin() + 1, values.end());
    saved.emplace(key, std::move(s));
  }
  return saved;
}

// Adds what other experts of a tensor have found. A scale of experts that have never had a row says
// nothing.
void merge(SavedScale& into, const SavedScale& other) {
  if (!other.seen()) return;
  into.scale = into.seen() ? std::min(into.scale, other.scale) : other.scale;
  for (size_t i = 0; i < std::min(into.history.size(), other.history.size()); ++i)
    into.history[i] = std::max(into.history[i], other.history[i]);
}

}  // namespace

// A line holds the name, the experts of which a rank of experts has found it ("0:4"), the scale and
// the history, oldest first, as hexadecimal floats, which are exact.
std::string Float8Scaling::state(Stream& stream, bool layers, bool experts) const {
  if (!has_history_ || !(layers || experts)) return "";
  const auto scales = all_.scale_C.to_host<float>(stream),
             history = all_.history_CL.to_host<float>(stream);
  std::string text;
  const int64_t L = options_.history;
  for (size_t linear = 0; linear < linears_.size(); ++linear) {
    const Weight& w = weights_[linear];
    if (!(w.of_experts() ? experts : layers)) continue;
    for (const Role role : {Role::input, Role::weight, Role::gradient}) {
      const int64_t i = index(int64_t(linear), role);
      text += name(int64_t(linear), role);
      if (w.of_experts()) {
        const ExpertNumbers own = experts_of(*w.parameter);
        text += fmt::format(" {}:{}", own.first, own.end);
      }
      text += fmt::format(" {:a}", scales[size_t(i)]);
      for (int64_t l = 0; l < L; ++l)
        text += fmt::format(" {:a}", history[size_t(i * L + (history_index_ + l) % L)]);
      text += "\n";
    }
  }
  return text;
}

void Float8Scaling::restore(Stream& stream, const std::string& state) {
  if (!all_.amax_C || state.empty()) return;
  const SavedScales saved = read_scales(state);
  const int64_t C = tensors(), L = options_.history;
  const auto count = static_cast<size_t>(C);
  std::vector<float> scales(count), inverses(count), history(count * size_t(L));
  int64_t known = 0;  // steps of the saved history that fit into the ring; the last ones are taken
  const auto take = [&](int64_t linear, Role role) {
    const Weight& w = weights_[size_t(linear)];
    std::optional<SavedScale> own;
    const auto [begin, end] = saved.equal_range(name(linear, role));
    for (auto line = begin; line != end; ++line) {
      if (w.of_experts() && !line->second.experts.meet(experts_of(*w.parameter))) continue;
      own ? merge(*own, line->second) : void(own = line->second);
    }
    if (!own || !(own->scale > 0))
      throw UserError(
          fmt::format("the checkpoint has 8-bit scales, but none for {}", name(linear, role)),
          "load a checkpoint of the same model, or set mixed_precision.fp8_recipe: "
          "tensorwise");
    const int64_t i = index(linear, role);
    scales[size_t(i)] = own->scale;
    inverses[size_t(i)] = 1.0f / own->scale;
    // Maxima that have left the history leave a scale other than the one that tensors begin with.
    unseen_[size_t(i)] = w.of_experts() && !own->seen() && own->scale == 1;
    known = std::min(L, int64_t(own->history.size()));
    std::copy(own->history.end() - known, own->history.end(), history.begin() + i * L);
  };
  for (int64_t linear = 0; linear < int64_t(linears_.size()); ++linear)
    for (const Role role : {Role::input, Role::weight, Role::gradient}) take(linear, role);
  // Graphs hold the addresses, so the memory must stay the same.
  const auto put = [&](std::vector<float>& values, const Tensor& to) {
    const auto keep = std::make_shared<std::vector<float>>(std::move(values));
    stream.upload(to, keep, keep->data());
  };
  ops::fill(stream, all_.amax_C, 0);
  put(history, all_.history_CL);
  put(scales, all_.scale_C);
  put(inverses, all_.inverse_C);
  history_index_ = known % L;
  has_history_ = true;
  weights_changed();  // the kept copies have other scales
}

}  // namespace mtrain::model
