#include "model/quantizer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "device/device.h"
#include "ops/elementwise.h"

namespace mtrain::model {

void Quantizer::refuse_capture(Stream& stream) {
  if (stream.device().capture())
    throw RunError("8-bit copies or scales of weights cannot be made within a graph");
}

int64_t Quantizer::add(const std::string& name, const Parameter& weight) {
  MT_CHECK(!materialized_, "{} is declared after materialize()", name);
  linears_.push_back(name);
  weights_.push_back({.parameter = &weight});
  Weight& w = weights_.back();
  MT_CHECK(!w.of_experts() || !in_blocks(), "{}: experts have one scale for a tensor", name);
  w.place = (w.of_experts() ? of_experts_ : of_layers_)++;
  return int64_t(linears_.size()) - 1;
}

int64_t Quantizer::index(int64_t linear, Role role) const {
  const Weight& w = weights_[size_t(linear)];
  const int64_t D = of_layers_, X = of_experts_, operand = 2 * w.place + (role == Role::weight);
  if (w.of_experts()) return 3 * D + (role == Role::gradient ? w.place : X + operand);
  return role == Role::gradient ? 2 * D + w.place : operand;
}

std::string Quantizer::name(int64_t linear, Role role) const {
  constexpr std::array kRoleNames{".input", ".weight", ".gradient"};
  return linears_[size_t(linear)] + kRoleNames[size_t(role)];
}

void Quantizer::materialize(Stream& stream) {
  constexpr auto kBuffers = device::MemoryCategory::buffers;
  materialized_ = true;
  const auto make = [&](Shape shape) { return Tensor::empty(stream, shape, DType::f32, kBuffers); };
  const QuantFormat format = this->format(Role::weight);
  for (Weight& w : weights_) {
    const int64_t O = w.rows(), I = w.columns();
    if (format.outer_scale()) w.scale = {make({1}), make({1})};
    if (!w.gathered() && (options_.keep_weights || (options_.keep_transposed && w.of_experts())))
      w.copy = ops::quantized_memory(stream, O, I, format, kBuffers);
    if (options_.keep_transposed && !w.of_experts())
      w.transposed = ops::transposed_memory(stream, O, I, format, kBuffers);
  }
  materialize_gathered(stream);
  if (linears_.empty() || in_blocks()) return;
  const int64_t C = tensors();
  if (!options_.delayed) {
    written_amax_C_ = make({C});
    ops::fill(stream, written_amax_C_, 0);
    return;
  }
  all_ = {make({C}), make({C, options_.history}), make({C}), make({C})};
  for (const Tensor& none : {all_.amax_C, all_.history_CL}) ops::fill(stream, none, 0);
  for (const Tensor& neutral : {all_.scale_C, all_.inverse_C}) ops::fill(stream, neutral, 1);
  unseen_.assign(size_t(C), false);
  std::fill(unseen_.begin() + 3 * of_layers_, unseen_.end(), true);
}

ops::DelayedScales Quantizer::range(int64_t begin, int64_t end) const {
  return {all_.amax_C.rows(begin, end), all_.history_CL.rows(begin, end),
          all_.scale_C.rows(begin, end), all_.inverse_C.rows(begin, end)};
}

ops::Scale Quantizer::delayed_scale(int64_t index) const {
  const ops::DelayedScales own = range(index, index + 1);
  return {own.scale_C, own.inverse_C};
}

Tensor Quantizer::amax(int64_t index, bool record) const {
  return record && options_.delayed ? range(index, index + 1).amax_C : Tensor();
}

ops::Destination Quantizer::destination(int64_t linear, Role role, bool record) const {
  const int64_t i = index(linear, role);
  if (written_amax_C_) return {.amax = written_amax_C_.rows(i, i + 1)};
  if (!has_history(i)) return {};
  return {.format = format(role), .scale = delayed_scale(i), .amax = amax(i, record)};
}

// Before the first delayed scale the kernel of x finds no maximum. If it has found one, scaling is
// current.
void Quantizer::find_scale(Stream& stream, int64_t linear, Role role, LinearOperand& x) const {
  if (x.scale || !format(role).outer_scale()) return;
  if (const int64_t i = index(linear, role); has_history(i))
    x.scale = delayed_scale(i);
  else if (x.value.amax)
    x.scale = ops::scale_from_amax(stream, x.value.amax, type(role), options_.margin);
  else
    x.scale = ops::current_scale(stream, x.value.plain, type(role), options_.margin);
}

ops::Operand Quantizer::rows(Stream& stream, int64_t linear, Role role, LinearOperand& x,
                             bool record) const {
  find_scale(stream, linear, role, x);
  if (x.value.quantized) return x.value.quantized;
  return ops::quantize(stream, x.value.plain, format(role), x.scale,
                       amax(index(linear, role), record && !x.value.amax));
}

ops::Operand Quantizer::columns(Stream& stream, int64_t linear, Role role, LinearOperand& x) const {
  if (x.transposed) return x.transposed;
  if (!x.value.plain) return ops::transpose_quantized(stream, x.value.quantized);
  find_scale(stream, linear, role, x);
  return ops::quantize_transposed(stream, x.value.plain, format(role), x.scale);
}

ops::Operand Quantizer::rows_and_columns(Stream& stream, int64_t linear, Role role,
                                         LinearOperand& x, bool record) const {
  find_scale(stream, linear, role, x);
  if (x.value.quantized) {
    x.transposed = ops::transpose_quantized(stream, x.value.quantized);
    return x.value.quantized;
  }
  const auto both = ops::quantize_both(stream, x.value.plain, format(role), x.scale,
                                       amax(index(linear, role), record && !x.value.amax));
  x.transposed = both.transposed;
  return both.rows;
}

ops::Scale Quantizer::weight_scale(Stream& stream, int64_t linear) {
  if (!format(Role::weight).outer_scale()) return {};
  if (const int64_t i = index(linear, Role::weight); has_history(i)) return delayed_scale(i);
  Weight& w = weights_.at(size_t(linear));
  if (w.has_scale) return w.scale;
  refuse_capture(stream);
  ops::current_scale_into(stream, w.parameter->value, type(Role::weight), options_.margin, w.scale);
  w.has_scale = true;
  return w.scale;
}

ops::Operand Quantizer::weight(Stream& stream, int64_t linear, bool transposed, bool record) {
  Weight& w = weights_.at(size_t(linear));
  MT_CHECK(!transposed || !w.of_experts(), "{} has no transpose", linears_[size_t(linear)]);
  if (w.gathered()) return gathered_weight(stream, linear, transposed);
  const Tensor value = w.parameter->value.view({w.rows(), w.columns()});
  const QuantFormat format = this->format(Role::weight);
  const ops::Scale scale = weight_scale(stream, linear);
  const Tensor amax = this->amax(index(linear, Role::weight), record);
  const ops::Operand& kept = transposed ? w.transposed : w.copy;
  if (!kept)
    return transposed ? ops::quantize_transposed(stream, value, format, scale, amax)
                      : ops::quantize(stream, value, format, scale, amax);
  if ((transposed ? w.has_transposed : w.has_copy) && (w.recorded || !amax)) return kept;
  refuse_capture(stream);
  // A training forward also makes the transpose for its backward, to read the weight once.
  if (format.outer_scale()) w.copy.inverse = w.transposed.inverse = scale.inverse;
  const ops::Operand copy = transposed ? ops::Operand() : w.copy,
                     other = transposed || record ? w.transposed : ops::Operand();
  ops::quantize_into(stream, value, scale, copy, other, amax);
  w.has_copy = w.has_copy || copy;
  w.has_transposed = w.has_transposed || other;
  w.recorded = w.recorded || amax;
  return kept;
}

void Quantizer::prepare(Stream& stream) {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Weight& w = weights_[i];
    if (w.copy) weight(stream, int64_t(i), false, true);
    if (w.transposed) weight(stream, int64_t(i), true, false);
    if (!w.gathered()) weight_scale(stream, int64_t(i));
  }
}

void Quantizer::weights_changed() {
  for (Weight& w : weights_) {
    w.has_copy = w.has_transposed = w.has_scale = false;
    w.recorded = w.recorded && w.gathered();
  }
}

// The host waits for the maxima, in the first step and while some experts still lack rows.
void Quantizer::note_rows(Stream& stream) {
  if (!waits_for_rows()) return;
  const auto C = size_t(tensors());
  const auto amax = all_.amax_C.to_host<float>(stream);
  for (size_t i = 0; i < C; ++i) unseen_[i] = unseen_[i] && !(amax[i] > 0);
}

void Quantizer::end_step(Stream& stream,
                         const std::function<void(const Tensor& amax, UnitKind of)>& over_ranks,
                         const Tensor& grad_scale) {
  if (!all_.amax_C) return;
  weights_changed();  // the kept copies have the old scales
  const int64_t D = of_layers_, X = of_experts_;
  if (D > 0) over_ranks(range(0, 3 * D).amax_C, UnitKind::layer);
  if (X > 0) over_ranks(range(3 * D, tensors()).amax_C, UnitKind::experts);
  note_rows(stream);
  const auto update = [&](int64_t begin, int64_t end, Role role) {
    if (begin < end)
      ops::update_scales(stream, range(begin, end), history_index_, options_.most_recent,
                         type(role), options_.margin, grad_scale);
  };
  update(0, 2 * D, Role::input);
  update(2 * D, 3 * D + X, Role::gradient);
  update(3 * D + X, tensors(), Role::input);
  for (Weight& w : weights_) w.recorded = false;  // the maxima are 0 again
  history_index_ = (history_index_ + 1) % options_.history;
  has_history_ = true;
}

void Quantizer::drop_maxima(Stream& stream) {
  if (!all_.amax_C) return;
  ops::fill(stream, all_.amax_C, 0);
  for (Weight& w : weights_) w.recorded = false;
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

// What a checkpoint holds about a tensor, or about the tensor of some experts.
struct SavedScale {
  ExpertNumbers experts;  // none, unless the tensor belongs to experts
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

// Adds the maxima of other experts' tensor. A scale of experts that have never had a row carries no
// information.
void merge(SavedScale& into, const SavedScale& other) {
  if (!other.seen()) return;
  into.scale = into.seen() ? std::min(into.scale, other.scale) : other.scale;
  for (size_t i = 0; i < std::min(into.history.size(), other.history.size()); ++i)
    into.history[i] = std::max(into.history[i], other.history[i]);
}

}  // namespace

// A line holds the name, the experts of the rank that has found it ("0:4"), the scale and the
// history, oldest first. Numbers are hexadecimal floats, which are exact.
std::string Quantizer::state(Stream& stream, bool layers, bool experts) const {
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

void Quantizer::restore(Stream& stream, const std::string& state) {
  if (!all_.amax_C || state.empty()) return;
  const SavedScales saved = read_scales(state);
  const int64_t C = tensors(), L = options_.history;
  const auto count = static_cast<size_t>(C);
  std::vector<float> scales(count), inverses(count), history(count * size_t(L));
  int64_t known = 0;  // how many steps of the saved history fit into the ring: the last ones
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
    // Maxima that are older than the history have still changed the scale from its initial 1.
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
  for (Weight& w : weights_) w.recorded = false;
}

ops::Operand LinearQuantizer::input(Step& step, LinearOperand& x) const {
  ops::Operand read = rows(step.compute, Role::input, x, step.training);
  // The weight's gradient reads plain numbers, if they exist. Otherwise the kernel that computes x
  // again must quantize it as before.
  if (x.value.plain)
    x.value.quantized = {};
  else
    x.rewrite = {.format = read.format(), .scale = x.scale};
  return read;
}

// One read of dy makes both forms: the rows for dgrad and the transpose for wgrad. If dy's kernel
// has quantized the rows, they are transposed. dy itself is then freed, and only the transpose,
// which has half its bytes, waits for wgrad. A bias needs dy itself, however. If wgrad with a bias
// is held, a transpose would have to wait beside dy; wgrad makes the transpose when it runs
// instead.
ops::Operand LinearQuantizer::gradient(Step& step, LinearOperand& dy, bool bias) const {
  if (!all_) return dy.value.plain;
  MT_CHECK(dy.value.plain || !bias, "the gradient of a bias needs plain numbers");
  const bool dy_waits = bias && step.wgrad.holding();
  ops::Operand read = dy_waits
                          ? rows(step.compute, Role::gradient, dy, true)
                          : all_->rows_and_columns(step.compute, number_, Role::gradient, dy, true);
  dy.value = bias ? ops::Written(std::move(dy.value.plain)) : ops::Written();
  return read;
}

}  // namespace mtrain::model
