#include "checkpoint/read_weights.h"

#include <utility>

#include "model/param/param_uploader.h"
#include "model/param/write_weights.h"
#include "storage/finite_values.h"

namespace mtrain::checkpoint {

using storage::ValueSource;

void require_shape(const ValueSource& source, const std::string& name, const Shape& expected,
                   const std::string& hint) {
  const Shape found = source.shape(name);
  if (!(found == expected))
    throw UserError(fmt::format("{} is {}, but the recipe's model has {}", source.origin(name),
                                found.str(), expected.str()),
                    hint);
}

void add_expected(const model::Parameter& p, const std::string& name,
                  std::vector<storage::ExpectedRun>& expected) {
  for (const model::OwnedPart& part : owned_parts(p))
    for (const StridedRun& run : full_runs(p, part.in_param, part.count))
      expected.push_back({name, run});
}

ReadProgress progress_of(const CheckpointParts& t, std::string_view what) {
  if (!t.progress) return {};
  return [&t, what](int64_t done, int64_t total) { t.progress(what, done, total); };
}

ReadBytes::ReadBytes(model::ParamStore& params, ReadProgress progress)
    : progress_(std::move(progress)) {
  for (const model::Parameter* p : params.params()) total_ += p->shape.count() * 4;
  if (progress_) progress_(0, total_);
}

void ReadBytes::add(const model::Parameter& p) {
  done_ += p.shape.count() * 4;
  if (progress_) progress_(done_, total_);
}

void read_weights(Stream& stream, model::ParamStore& params, const ValueSource& source,
                  const WhichWeights& which, const std::string& hint,
                  const ReadProgress& progress) {
  std::vector<const model::Parameter*> chosen;
  for (const model::Parameter* p : params.params())
    if (which(*p)) chosen.push_back(p);
  for (const model::Parameter* p : chosen) require_shape(source, p->name, p->full_shape(), hint);
  std::vector<storage::ExpectedRun> expected;
  for (const model::Parameter* p : chosen) add_expected(*p, p->name, expected);
  source.expect(std::move(expected));
  model::ParamUploader uploader(stream);
  ReadBytes read(params, progress);
  for (const model::Parameter* p : chosen) {
    uploader.set_weights(*p, [&](int64_t first, int64_t count, float* values) {
      source.read(p->name, first, count, values);
    });
    read.add(*p);
  }
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
                const std::vector<ReplicatedTensor>& replicated, const ValueSource& source,
                const ReadProgress& progress) {
  const std::string hint = "set the recipe's model fields to those of the weights";
  const storage::FiniteValues finite(source);
  const auto of_base = [](const model::ParamSpec& p) { return !p.adapter; };
  read_weights(stream, params, finite, of_base, hint, progress);
  std::vector<ReplicatedTensor> present;
  for (const ReplicatedTensor& r : replicated)
    if (r.of_model && finite.contains(r.name)) present.push_back(r);
  read_replicated(stream, present, finite, hint);
}

void start_from(const CheckpointParts& t, const ValueSource& source) {
  model::write_weights(t.params, t.data_parallel, t.quantizer, [&] {
    read_model(t.compute, t.params, t.replicated, source, progress_of(t, "weights"));
  });
}

}  // namespace mtrain::checkpoint
