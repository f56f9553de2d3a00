// Settings of trainings whose linears multiply in 8 bits, as a CPU emulates them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "train_ranks.h"

namespace train_testing {

// The sizes per rank are multiples of 16, for two ranks too. The learning rate is a fifth of that
// in the other tests, with which the loss falls so steeply that it differs from bf16's by up to 6
// %.
inline const Changes kBf16{"mixed_precision.name=bf16_mixed", "model.hidden_size=64",
                           "model.ffn_hidden_size=96", "optimizer.lr=2e-3", "train.steps=50"};
inline Changes fp8(const Changes& more) {
  return with(with(kBf16, {"mixed_precision.fp8=hybrid", "debug.emulate_fp8=true"}), more);
}
inline const Changes kTensorwise = fp8({}),
                     kDelayed = fp8({"mixed_precision.fp8_recipe=delayed",
                                     "mixed_precision.fp8_amax_history_len=4",
                                     "mixed_precision.fp8_amax_compute_algo=max"});

// Rows of 1 to `longest` tokens.
class ShortRows : public data::Dataset {
 public:
  explicit ShortRows(int64_t longest) : longest_(longest) {}
  int64_t seq_length() const override { return longest_; }
  int64_t size() const override { return 64; }
  bool packed() const override { return true; }
  bool fixed_length() const override { return false; }
  void sample(int64_t index, data::Sample& out) const override {
    out = {};
    const int64_t length = 1 + 5 * index % longest_;
    for (int64_t s = 0; s < length; ++s) {
      out.input.push_back(int32_t((index + s) % kVocab));
      out.label.push_back(int32_t((index + s + 1) % kVocab));
      out.position.push_back(int32_t(s));
    }
    out.documents = {length};
  }

 private:
  const int64_t longest_;
};
inline Changes rows_of(int64_t longest) {
  return {"dataset.form=rows", fmt::format("dataset.seq_length={}", longest),
          "train.micro_batch_size=1", "train.global_batch_size=4"};
}

struct Run {
  explicit Run(const Changes& changes)
      : recipe(tiny(changes)),
        device(Device::cpu(1, {.stream_sanitizer = true})),
        trainer(make_trainer(*device, recipe, std::make_shared<CountingData>())) {}
  std::vector<double> losses(int64_t steps) {
    std::vector<double> out;
    for (int64_t i = 0; i < steps; ++i) out.push_back(trainer.step().loss);
    return out;
  }
  std::string scales() { return trainer.quantizer()->state(trainer.compute()); }
  Recipe recipe;
  std::unique_ptr<Device> device;
  train::Trainer trainer;
};

}  // namespace train_testing
