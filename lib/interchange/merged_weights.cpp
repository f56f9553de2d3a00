#include "interchange/merged_weights.h"

#include <algorithm>

#include "base/error.h"
#include "spec/tensors.h"

namespace mtrain::interchange {

namespace {

// Adds an adapter's part of the elements [first, first + count) of its weight. Sums are in double.
void add_adapter(const Adapter& adapter, const std::vector<float>& a, const std::vector<float>& b,
                 int64_t columns, int64_t first, int64_t count, float* values) {
  const int64_t begin_row = std::max(first / columns, adapter.first_row),
                end_row =
                    std::min((first + count - 1) / columns + 1, adapter.first_row + adapter.rows);
  std::vector<double> sum;
  for (int64_t row = begin_row; row < end_row; ++row) {
    const int64_t begin = std::max(first, row * columns),
                  end = std::min(first + count, (row + 1) * columns);
    sum.assign(size_t(end - begin), 0);
    for (int64_t k = 0; k < adapter.dim; ++k) {
      const double scaled =
          adapter.scale * double(b[size_t((row - adapter.first_row) * adapter.dim + k)]);
      const float* const of_a = a.data() + k * columns + begin - row * columns;
      for (int64_t i = 0; i < end - begin; ++i) sum[size_t(i)] += scaled * double(of_a[i]);
    }
    for (int64_t i = 0; i < end - begin; ++i) {
      float& value = values[begin + i - first];
      value = float(double(value) + sum[size_t(i)]);
    }
  }
}

// Returns the factor of one expert, or all of the tensor.
std::vector<float> read_factor(const storage::ValueSource& source, const std::string& name,
                               const Adapter& a) {
  const int64_t count = source.shape(name).count() / std::max<int64_t>(a.experts, 1);
  std::vector<float> values(static_cast<size_t>(count));
  source.read(name, a.expert * count, count, values.data());
  return values;
}

int64_t columns_of(const Shape& weight) { return weight[weight.rank() - 1]; }

void require_factor(const storage::ValueSource& source, const std::string& name,
                    const Adapter& adapter, Shape shape) {
  if (adapter.experts > 0) shape = {adapter.experts, shape[0], shape[1]};
  if (!source.contains(name)) throw UserError(fmt::format("the adapter lacks {}", name));
  if (!(source.shape(name) == shape))
    throw UserError(fmt::format("{} is {}, and the model needs {}", source.origin(name),
                                source.shape(name).str(), shape.str()),
                    "give the model that the adapter was trained with");
}

// Adds the adapter of each expert, if the experts have any.
void add_expert_adapters(const spec::TensorSpec& weight, const spec::Lora& lora,
                         const std::vector<spec::TensorSpec>& tensors,
                         std::vector<Adapter>& adapters) {
  const std::string linear = weight.name.substr(0, weight.name.rfind('.'));
  if (!find_tensor(tensors, linear + ".lora.a")) return;
  const int64_t experts = weight.full_shape[0], rows = weight.full_shape[1];
  for (int64_t e = 0; e < experts; ++e)
    adapters.push_back({.weight = weight.name,
                        .first_row = e * rows,
                        .rows = rows,
                        .dim = lora.expert_dim,
                        .scale = lora.alpha / double(lora.expert_dim),
                        .a = linear + ".lora.a",
                        .b = linear + ".lora.b",
                        .experts = experts,
                        .expert = e});
}

}  // namespace

std::vector<Adapter> adapters_of(const spec::ModelSpec& model) {
  std::vector<Adapter> adapters;
  if (!model.lora) return adapters;
  const spec::Lora& lora = *model.lora;
  constexpr std::string_view kWeight = ".weight";
  for (int64_t layer = 0; layer < model.layer_count(); ++layer) {
    const std::vector<spec::TensorSpec> tensors = layer_tensors(model, layer);
    for (const spec::TensorSpec& w : tensors) {
      if (!w.name.ends_with(kWeight)) continue;
      const std::string linear = w.name.substr(0, w.name.size() - kWeight.size());
      const auto add = [&](spec::Rows part, int64_t first, int64_t rows) {
        const std::string name = linear + adapter_prefix(part);
        if (find_tensor(tensors, name + ".a"))
          adapters.push_back({.weight = w.name,
                              .first_row = first,
                              .rows = rows,
                              .dim = lora.dim,
                              .scale = lora.alpha / double(lora.dim),
                              .a = name + ".a",
                              .b = name + ".b"});
      };
      if (w.split.experts) {
        add_expert_adapters(w, lora, tensors, adapters);
        continue;
      }
      add(spec::Rows::all, 0, w.full_shape[0]);
      int64_t first = 0;
      for (const spec::RowSection& s : w.split.sections) {
        if (s.rows != spec::Rows::all) add(s.rows, first, s.count());
        first += s.count();
      }
    }
  }
  return adapters;
}

MergedWeights::MergedWeights(std::shared_ptr<const ValueSource> weights,
                             std::shared_ptr<const ValueSource> factors,
                             const std::vector<Adapter>& adapters)
    : weights_(std::move(weights)), factors_(std::move(factors)) {
  for (const Adapter& a : adapters) {
    require_factor(*factors_, a.a, a, {a.dim, columns_of(weights_->shape(a.weight))});
    require_factor(*factors_, a.b, a, {a.rows, a.dim});
    adapters_[a.weight].push_back(a);
  }
}

std::shared_ptr<const MergedWeights::Factors> MergedWeights::factors_of(
    const std::string& weight, const std::vector<Adapter>& adapters) const {
  {
    const std::lock_guard lock(mutex_);
    if (last_ && last_->weight == weight) return last_;
  }
  auto factors = std::make_shared<Factors>(Factors{.weight = weight, .a = {}, .b = {}});
  for (const Adapter& a : adapters) {
    factors->a.push_back(read_factor(*factors_, a.a, a));
    factors->b.push_back(read_factor(*factors_, a.b, a));
  }
  const std::lock_guard lock(mutex_);
  last_ = factors;
  return factors;
}

void MergedWeights::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  weights_->read(name, first, count, values);
  const auto found = adapters_.find(name);
  if (found == adapters_.end() || count == 0) return;
  const auto factors = factors_of(found->first, found->second);
  const int64_t columns = columns_of(weights_->shape(name));
  for (size_t i = 0; i < found->second.size(); ++i)
    add_adapter(found->second[i], factors->a[i], factors->b[i], columns, first, count, values);
}

}  // namespace mtrain::interchange
