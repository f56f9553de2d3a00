// The weights of a model whose adapters are merged into them: W + scale B A.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"
#include "storage/value_source.h"

namespace mtrain::interchange {

// An adapter of the rows [first_row, first_row + rows) of a weight. The rows of a weight of
// experts, (experts, rows, columns), are those of all its matrices.
struct Adapter {
  std::string weight;
  int64_t first_row = 0, rows = 0, dim = 0;
  double scale = 0;
  std::string a, b;  // the names of A (dim, columns) and B (rows, dim) in their source
  // If `experts` is not 0, those tensors hold the factors of that many experts, one after the
  // other, and this is the adapter of number `expert`.
  int64_t experts = 0, expert = 0;
};

// Returns the adapters of a model's own linears, in the order of its tensors.
std::vector<Adapter> adapters_of(const spec::ModelSpec& model);

// Several threads may read at the same time.
class MergedWeights : public storage::ValueSource {
 public:
  // Throws UserError, which names the tensor, if A or B is absent or has a different shape.
  MergedWeights(std::shared_ptr<const ValueSource> weights,
                std::shared_ptr<const ValueSource> factors, const std::vector<Adapter>& adapters);

  bool contains(std::string_view name) const override { return weights_->contains(name); }
  Shape shape(std::string_view name) const override { return weights_->shape(name); }
  std::string origin(std::string_view name) const override { return weights_->origin(name); }
  bool finite() const override { return weights_->finite() && factors_->finite(); }
  void expect(std::vector<storage::ExpectedRun> runs) const override {
    weights_->expect(std::move(runs));
  }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  // The values of A and B of all adapters of a weight.
  struct Factors {
    std::string weight;
    std::vector<std::vector<float>> a, b;
  };
  std::shared_ptr<const Factors> factors_of(const std::string& weight,
                                            const std::vector<Adapter>& adapters) const;

  const std::shared_ptr<const ValueSource> weights_, factors_;
  std::map<std::string, std::vector<Adapter>, std::less<>> adapters_;  // by the weight's name
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Factors> last_;  // of the weight that was read last
};

}  // namespace mtrain::interchange
