#include "checkpoint/read_weights.h"

#include <bit>

#include "model/param/param_uploader.h"
#include "optim/write_weights.h"

namespace mtrain::checkpoint {
namespace {

using storage::ValueSource;

// Reads from another source, and throws UserError for values that are not finite.
class FiniteValues : public ValueSource {
 public:
  explicit FiniteValues(const ValueSource& from) : from_(from) {}
  bool contains(std::string_view name) const override { return from_.contains(name); }
  Shape shape(std::string_view name) const override { return from_.shape(name); }
  std::string origin(std::string_view name) const override { return from_.origin(name); }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override {
    from_.read(name, first, count, values);
    constexpr uint32_t kExponent = 0x7f800000u;  // all its bits: infinite, or not a number
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; ++i)
      bad |= uint32_t((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent);
    if (!bad) return;
    int64_t at = 0;
    while ((std::bit_cast<uint32_t>(values[at]) & kExponent) != kExponent) ++at;
    throw UserError(fmt::format("{} has {} as element {}; weights must be finite", origin(name),
                                values[at], first + at),
                    "the file is damaged, or the training that made it has diverged: take another");
  }

 private:
  const ValueSource& from_;
};

}  // namespace

void require_shape(const ValueSource& source, const std::string& name, const Shape& expected,
                   const std::string& hint) {
  const Shape found = source.shape(name);
  if (!(found == expected))
    throw UserError(fmt::format("{} is {}, but the recipe's model has {}", source.origin(name),
                                found.str(), expected.str()),
                    hint);
}

void read_weights(Stream& stream, model::ParamStore& params, const ValueSource& source,
                  const std::string& hint) {
  for (const model::Parameter* p : params.params())
    require_shape(source, p->name, p->whole_shape(), hint);
  model::ParamUploader uploader(stream);
  for (const model::Parameter* p : params.params())
    uploader.set_weights(*p, [&](int64_t first, int64_t count, float* values) {
      source.read(p->name, first, count, values);
    });
}

void read_replicated(Stream& stream, const std::vector<ReplicatedTensor>& replicated,
                     const ValueSource& source, const std::string& hint) {
  for (const ReplicatedTensor& r : replicated) {
    require_shape(source, r.name, r.value.shape(), hint);
    const auto values = std::make_shared<std::vector<float>>(size_t(r.value.count()));
    source.read(r.name, 0, r.value.count(), values->data());
    stream.upload(r.value, values, values->data());
  }
}

void read_model(Stream& stream, model::ParamStore& params,
                const std::vector<ReplicatedTensor>& replicated, const ValueSource& source) {
  const std::string hint = "give the model's fields as the weights have them";
  const FiniteValues finite(source);
  read_weights(stream, params, finite, hint);
  std::vector<ReplicatedTensor> present;
  for (const ReplicatedTensor& r : replicated)
    if (r.of_model && finite.contains(r.name)) present.push_back(r);
  read_replicated(stream, present, finite, hint);
}

void start_from(const CheckpointParts& t, const ValueSource& source) {
  optim::write_weights(t.params, t.data_parallel, t.fp8,
                       [&] { read_model(t.compute, t.params, t.replicated, source); });
}

}  // namespace mtrain::checkpoint
