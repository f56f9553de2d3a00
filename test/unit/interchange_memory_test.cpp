// Tests the memory that reading a large model takes, and the bytes that are read of transposed
// tensors.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "interchange/hf_folder.h"
#include "interchange/hf_source.h"
#include "interchange/model_source.h"
#include "recipe/model_spec.h"
#include "sparse_model.h"
#include "test/support/temporary_folder.h"

namespace interchange_memory_test {

using namespace mtrain;

namespace {

constexpr int64_t kRun = 8 << 20;         // elements: 32 MiB, more than ranks read at once
constexpr int64_t kAllowance = 64 << 20;  // bytes: such a run, and the other memory of reading

// Calls read(first, count) for the runs of a tensor.
template <class Read>
void in_runs(const Shape& shape, const Read& read) {
  for (int64_t first = 0; first < shape.count(); first += kRun)
    read(first, std::min(kRun, shape.count() - first));
}

// A GPT-2 with a source of matrices whose values are their own indices.
recipe::Recipe gpt2(int64_t hidden, int64_t ffn) {
  Diagnostics diagnostics;
  const auto r = recipe::read_recipe_text(
      interchange::model_source(),
      fmt::format("model: {{architecture: gpt2, num_layers: 1, hidden_size: {}, "
                  "num_attention_heads: 2, ffn_hidden_size: {}, vocab_size: 4, "
                  "max_position_embeddings: 4}}\n",
                  hidden, ffn),
      "gpt2.yaml", {}, diagnostics);
  diagnostics.throw_if_errors();
  return *r;
}

class Places : public storage::ValueSource {
 public:
  explicit Places(const interchange::TensorMap& map) : map_(map) {}
  bool contains(std::string_view name) const override { return map_.find_hf(name); }
  Shape shape(std::string_view name) const override { return map_.find_hf(name)->shape; }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override {
    MT_CHECK(first >= 0 && first + count <= shape(name).count(), "{} + {}", first, count);
    for (int64_t i = 0; i < count; ++i) values[i] = float(first + i);
    elements_ += count;
  }
  int64_t take_elements() const { return elements_.exchange(0); }  // read since the last call

 private:
  const interchange::TensorMap& map_;
  mutable std::atomic<int64_t> elements_{0};
};

}  // namespace

TEST_CASE("mtrain's tensors of a 70B model are read through a small part of its memory") {
  const TemporaryFolder temporary;
  write_sparse_model(temporary.path, llama_tensors(kLlama70b), 30);
  write_file_atomic(temporary / "config.json", llama_config(kLlama70b));
  const auto folder = interchange::open_hf_folder(temporary.path);
  const int64_t before = anonymous_memory();
  const auto source = folder.source();
  std::vector<float> values(kRun);
  int64_t most = before, elements = 0;
  // One layer and the end of the model; all of it would take minutes.
  for (const interchange::MappedTensor& t : folder.map.tensors())
    if (t.name.starts_with("layers.79.") || t.name == "final_norm.weight")
      in_runs(t.shape, [&](int64_t first, int64_t count) {
        values[size_t(count - 1)] = 1;
        source->read(t.name, first, count, values.data());
        REQUIRE(values[size_t(count - 1)] == 0);
        most = std::max(most, anonymous_memory());
        elements += count;
      });
  CHECK(elements > 850'000'000);
  CHECK(folder.tensors->bytes_read() == 2 * elements);
  CHECK(most - before < kAllowance);
}

TEST_CASE("a transposed matrix is read and written through a small part of it") {
  const recipe::Recipe r = gpt2(4096, 16384);
  const interchange::TensorMap map(recipe::model_spec(r.model), *interchange::find_family("gpt2"));
  BrainTensors tensors;
  for (const interchange::TensorPiece* p : map.pieces()) tensors.emplace_back(p->hf_name, p->shape);
  const TemporaryFolder temporary;
  write_sparse_model(temporary.path, tensors, 2);
  const auto folder = std::make_shared<storage::SafetensorsFolder>(temporary.path);
  const int64_t before = anonymous_memory();
  const interchange::HfSource source(folder, map);
  const interchange::HfView view(source, map);
  std::vector<float> values(kRun);
  int64_t most = before;
  const auto read = [&](const storage::ValueSource& from, const char* name) {
    in_runs(from.shape(name), [&](int64_t first, int64_t count) {
      from.read(name, first, count, values.data());
      most = std::max(most, anonymous_memory());
    });
  };
  const int64_t matrix = 4096 * 16384;
  read(source, "layers.0.mlp.up.weight");
  CHECK(folder->bytes_read() == 2 * matrix);
  // The part of a rank of tp 2 in a matrix whose inputs are divided: half of each row.
  for (int64_t row = 0; row < 4096; ++row) {
    source.read("layers.0.mlp.down.weight", row * 16384 + 8192, 8192, values.data());
    most = std::max(most, row % 64 ? 0 : anonymous_memory());
  }
  CHECK(folder->bytes_read() == 2 * matrix + matrix);
  CHECK(most - before < kAllowance);
  read(view, "transformer.h.0.mlp.c_fc.weight");
  CHECK(most - before < kAllowance);
}

TEST_CASE("runs of a transposed matrix have its elements, and read no others") {
  constexpr int64_t kIn = 6, kOut = 9001;  // more outputs than are read at once
  const recipe::Recipe r = gpt2(kIn, kOut);
  const interchange::TensorMap map(recipe::model_spec(r.model), *interchange::find_family("gpt2"));
  const auto theirs = std::make_shared<Places>(map);
  const interchange::HfSource ours(theirs, map);
  const interchange::HfView back(ours, map);
  const char *name = "layers.0.mlp.up.weight", *their_name = "transformer.h.0.mlp.c_fc.weight";
  REQUIRE(ours.shape(name) == Shape{kOut, kIn});
  std::vector<float> values(kIn * kOut);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, kIn * kOut},
                                     {0, kIn + 1},
                                     {5, 2},
                                     {kIn - 1, kIn * 5000},
                                     {kIn * 4095 + 3, kIn * 2},
                                     {kIn * kOut - 10, 10},
                                     {17, 3 * kIn}}) {
    CAPTURE(first, count);
    theirs->take_elements();
    ours.read(name, first, count, values.data());
    CHECK(theirs->take_elements() == count);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i)
      wrong += values[size_t(i)] != float((first + i) % kIn * kOut + (first + i) / kIn);
    CHECK(wrong == 0);
    back.read(their_name, first, count, values.data());
    for (int64_t i = 0; i < count; ++i) wrong += values[size_t(i)] != float(first + i);
    CHECK(wrong == 0);
  }
  // The same part of successive rows is read for many rows at once, and only once.
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 3}, {3, 6}, {2, 3}, {0, 6}}) {
    CAPTURE(begin, end);
    const interchange::HfSource fresh(theirs, map);  // it has kept no values yet
    theirs->take_elements();
    int64_t wrong = 0;
    for (int64_t row = 0; row < kOut; ++row) {
      fresh.read(name, row * kIn + begin, end - begin, values.data());
      for (int64_t i = begin; i < end; ++i)
        wrong += values[size_t(i - begin)] != float(i * kOut + row);
    }
    CHECK(wrong == 0);
    CHECK(theirs->take_elements() == (end - begin) * kOut);
  }
}

}  // namespace interchange_memory_test
