// Compares imported models with transformers: the logits of small models of each family, which
// scripts/golden/hf.py has made from a configuration.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "checkpoint/read_weights.h"
#include "device/device.h"
#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "model/gpt.h"
#include "recipe/model_spec.h"
#include "storage/checkpoint_dir.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"
#include "train/router_state.h"

namespace interchange_logits_test {

using namespace mtrain;

namespace {

std::vector<float> values_of(const storage::ValueSource& source, const std::string& name) {
  std::vector<float> values(size_t(source.shape(name).count()));
  source.read(name, 0, int64_t(values.size()), values.data());
  return values;
}

// The ids of all samples, and what transformers computes from them: (B, S) and (B, S, V).
struct Expected {
  explicit Expected(const std::string& name)
      : file(golden_hf() / "expected" / (name + ".safetensors")) {
    B = file.shape("input_ids")[0], S = file.shape("input_ids")[1];
    ids.resize(size_t(B * S));
    file.read_bytes("input_ids", 0, B * S * 4, ids.data());
    logits = values_of(file, "logits");
  }
  storage::SafetensorsReader file;
  int64_t B = 0, S = 0;
  std::vector<int32_t> ids;
  std::vector<float> logits;
};

// Returns the logits (B, S, V) that mtrain computes in fp32 with the weights of `source`.
std::vector<float> logits_of(const recipe::Recipe& recipe, const storage::ValueSource& source,
                             const Expected& e) {
  const auto device = Device::cpu(2, {});
  Stream& stream = device->stream(device::StreamKind::compute);
  const spec::ModelSpec spec = recipe::model_spec(recipe.model, recipe.model.vocab_size, e.S);
  const train::RouterState routers(stream, spec);
  model::ModelImpls impls;
  impls.router_bias_LE = routers.bias_LE();
  model::ParamStore params;
  model::Gpt model(stream, params, spec, e.S, {}, impls);
  params.materialize(stream, DType::f32, false);
  for (model::Parameter* p : params.params()) {
    INFO(p->name);
    REQUIRE(source.contains(p->name));
    CHECK(source.shape(p->name) == p->full_shape());
    params.set_master(stream, *p, values_of(source, p->name));
  }
  checkpoint::read_replicated(stream, routers.tensors(), source, "");
  std::vector<int32_t> ids, positions;  // token s of sample b is row s * B + b
  for (int64_t s = 0; s < e.S; ++s)
    for (int64_t b = 0; b < e.B; ++b) {
      ids.push_back(e.ids[size_t(b * e.S + s)]);
      positions.push_back(int32_t(s));
    }
  const int64_t T = e.B * e.S;
  model::MicroBatch batch;
  batch.input_T = Tensor::from_host(stream, {T}, ids);
  batch.seq = {.B = e.B, .S = e.S, .position_T = Tensor::from_host(stream, {T}, positions)};
  model::WgradQueue wgrad;
  model::Stash stash;
  model::Step step{
      .compute = stream, .wgrad = wgrad, .stash = &stash, .seq = batch.seq, .training = false};
  const auto all = model.logits(step, batch).to_host<float>(stream);
  std::vector<float> ordered;
  for (int64_t b = 0; b < e.B; ++b)
    for (int64_t s = 0; s < e.S; ++s) {
      const auto row = all.begin() + (s * e.B + b) * spec.vocab;
      ordered.insert(ordered.end(), row, row + spec.vocab);
    }
  return ordered;
}

double relative_l2(const std::vector<float>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double(got[i]) - expected[i], 2);
    norm += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("logits of each family's folder are those of transformers") {
  for (const std::string& name : golden_hf_cases()) {
    DYNAMIC_SECTION(name) {
      const Expected expected(name);
      const auto folder = interchange::open_hf_folder(golden_hf() / name);
      CHECK(relative_l2(logits_of(folder.recipe, *folder.source(), expected), expected.logits) <
            1e-5);
    }
  }
}

TEST_CASE("an export of any type, in one file or several, computes what its import did") {
  for (const std::string& name : golden_hf_cases())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t shard : {int64_t{1} << 40, int64_t{20'000}}) {
        DYNAMIC_SECTION(name << " " << dtype_name(dtype) << " in files of " << shard << " bytes") {
          const TemporaryFolder temporary;
          const Expected expected(name);
          const auto checkpoint = interchange::import_hf(
              interchange::open_hf_folder(golden_hf() / name), temporary / "imported");
          const auto done = interchange::export_hf(checkpoint, temporary / "exported",
                                                   {.dtype = dtype, .max_shard_bytes = shard});
          CHECK((done.files >= 2) == (shard == 20'000));
          const auto folder = interchange::open_hf_folder(temporary / "exported");
          // The weights are bf16 numbers. fp16 rounds the smallest of them, below 2^-14.
          CHECK(relative_l2(logits_of(folder.recipe, *folder.source(), expected), expected.logits) <
                1e-5);
        }
      }
}

}  // namespace interchange_logits_test
