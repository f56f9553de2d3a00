// A small model whose plan is compared with its run, and the tokens of that run.
#pragma once
#include <string>
#include <vector>

#include "data/dataset/dataset.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"

namespace plan_testing {

using namespace mtrain;

inline constexpr int64_t kVocab = 4000;

class RepeatedToken : public data::Dataset {
 public:
  // With `documents`, samples are packs of that many equal ones.
  explicit RepeatedToken(int64_t seq_length, int64_t documents = 0)
      : seq_length_(seq_length), documents_(documents) {}
  bool packed() const override { return documents_ > 0; }
  int64_t seq_length() const override { return seq_length_; }
  int64_t size() const override { return 1 << 20; }
  void sample(int64_t index, data::Sample& out) const override {
    out.input.assign(size_t(seq_length_), int32_t(index % kVocab));
    out.label = out.input;
    out.position.clear();
    const int64_t length = packed() ? seq_length_ / documents_ : seq_length_;
    for (int64_t s = 0; s < seq_length_; ++s) out.position.push_back(int32_t(s % length));
    out.documents.assign(size_t(documents_), length);
  }

 private:
  int64_t seq_length_, documents_;
};

using Overrides = std::vector<std::string>;

inline Recipe recipe_with(const Overrides& more, int64_t world = 1) {
  Diagnostics diagnostics;
  Overrides overrides{"model.num_layers=6",          "model.hidden_size=128",
                      "model.num_attention_heads=4", "model.num_query_groups=2",
                      "dataset.seq_length=256",      "dataset.train=unused",
                      "train.global_batch_size=4",   "train.micro_batch_size=4",
                      "mixed_precision=fp32",        "debug.deterministic=true"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "planned",
                                    overrides, diagnostics, world);
  diagnostics.throw_if_errors();
  return r;
}

}  // namespace plan_testing
