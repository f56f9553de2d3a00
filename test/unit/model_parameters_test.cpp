// Parameters, and gradients that several entries of the weight-gradient queue share.
#include <catch2/catch.hpp>
#include <limits>

#include "base/rng.h"
#include "device/device.h"
#include "model/embedding.h"
#include "model/parameters.h"

using namespace mtrain;

TEST_CASE("initial weights are functions of seed, name and element, in every precision") {
  const auto device = Device::cpu(3);
  Stream& on = device->stream("compute");
  for (const bool training : {true, false})
    for (const DType compute : {DType::f32, DType::bf16}) {
      ParamStore params;
      Parameter* normal =
          params.add("a", {.name = "a.weight", .shape = {300, 128}, .std = 0.5f, .rows = 299});
      Parameter* ones =
          params.add("a", {.name = "a.norm", .shape = {77}, .init = Init::ones, .decay = false});
      Parameter* zeros = params.add("b", {.name = "b.bias", .shape = {77}, .init = Init::zeros});
      params.materialize(on, compute, training);
      params.initialize(on, 42);
      std::vector<float> want(300 * 128);  // the last row is padding and stays zero
      fill_normal(rng_key(42, "a.weight"), 0, 299 * 128, 0.5f, want.data());
      if (normal->master) CHECK((normal->master.to_host<float>(on) == want));
      if (compute == DType::bf16)
        for (float& w : want) w = float(bf16(w));
      CHECK((normal->value.to_host_float(on) == want));
      CHECK((ones->value.to_host_float(on) == std::vector<float>(77, 1.0f)));
      CHECK((zeros->value.to_host_float(on) == std::vector<float>(77, 0.0f)));
    }
}

TEST_CASE("a tied table's gradient is whole whichever of its entries is drained first") {
  const auto device = Device::cpu(1);
  Stream& on = device->stream("compute");
  GptConfig c{};
  c.hidden = 2, c.vocab = 3, c.padded_vocab = 4, c.rotary = true, c.tied_embeddings = true;
  ParamStore params;
  Embedding embedding(params, c);
  Parameter& table = *embedding.table();
  params.materialize(on, DType::f32, true);
  ops::fill(on, table.grad, std::numeric_limits<float>::quiet_NaN());  // what an older step left
  params.zero_grads(on);

  const Tensor id = Tensor::from_host<int32_t>(on, {3}, {2, 0, 2});
  const Tensor d = Tensor::from_host<float>(on, {3, 2}, {1, 2, 3, 4, 5, 6});
  SequenceInfo seq;
  WgradQueue wgrad;
  Stash stash;
  Step step{on, wgrad, stash, seq};
  embedding.backward(step, id, d);
  CHECK_FALSE(table.take_fresh());  // the head's entry adds
  CHECK(table.grad.to_host<float>(on) == std::vector<float>{3, 4, 0, 0, 6, 8, 0, 0});
}
