#include "train/router_state.h"

#include <algorithm>
#include <numeric>

#include <fmt/core.h>

#include "ops/elementwise.h"
#include "tensor/upload.h"

namespace mtrain::train {

RouterState::RouterState(Stream& stream, const spec::ModelSpec& model) : model_(model) {
  const spec::Experts* e = model_.experts();
  if (!e) return;
  const auto zeros = [&] {
    Tensor t = Tensor::empty(stream, {model_.layer_count(), e->count}, DType::f32,
                             device::MemoryCategory::buffers);
    ops::fill(stream, t, 0);
    return t;
  };
  if (e->bias) bias_LE_ = zeros();
  if (e->loss_coeffs.global > 0) fraction_LE_ = zeros();
}

void RouterState::step_done(Stream& stream, const Tensor& sums_LS, const std::vector<float>& host) {
  const spec::Experts& e = *model_.experts();
  const int64_t E = e.count, S = model::ExpertsOfStep::columns(E);
  if (bias_LE_ && e.bias_rate > 0 && !model_.lora)  // adapters leave the router as it is
    for (int64_t l = 0; l < model_.layer_count(); ++l)
      if (model_.layer(l).experts())
        ops::update_router_bias(stream, sums_LS.flat(l * S, {E}), bias_LE_.flat(l * E, {E}),
                                float(e.bias_rate));
  if (!fraction_LE_) return;
  std::vector<float> fractions(size_t(model_.layer_count() * E));
  for (int64_t l = 0; l < model_.layer_count(); ++l) {
    const float* count = host.data() + l * S;
    const double all = std::accumulate(count, count + E, 0.0);
    if (all == 0) continue;  // a layer without experts
    std::transform(count, count + E, fractions.begin() + l * E,
                   [all](float n) { return float(n / all); });
  }
  // Graphs hold the address, so the memory must stay the same.
  tensor::upload(stream, fraction_LE_, std::move(fractions));
  has_fraction_ = true;
}

std::vector<checkpoint::ReplicatedTensor> RouterState::tensors() const {
  std::vector<checkpoint::ReplicatedTensor> all;
  for (int64_t l = 0; l < model_.layer_count(); ++l) {
    const spec::Experts* experts = model_.layer(l).experts();
    if (!experts) continue;
    const int64_t E = experts->count;
    const auto add = [&](const Tensor& t, const char* name, bool of_model) {
      if (t)
        all.push_back(
            {fmt::format("layers.{}.mlp.router.{}", l, name), t.flat(l * E, {E}), of_model});
    };
    add(bias_LE_, "bias", true);
    add(fraction_LE_, "load_fraction", false);
  }
  return all;
}

void RouterState::loaded(Stream& stream) {
  if (!fraction_LE_) return;
  const auto fractions = fraction_LE_.to_host<float>(stream);
  has_fraction_ = std::ranges::any_of(fractions, [](float f) { return f != 0; });
}

}  // namespace mtrain::train
