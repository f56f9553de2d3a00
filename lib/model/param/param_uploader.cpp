#include "model/param/param_uploader.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace mtrain::model {
namespace {

// Reads elements [first, first + count) of this rank's tensor, all of them real, which has `runs`.
void read_runs(const std::vector<ElementRun>& runs, int64_t first, int64_t count,
               const ReadElements& read, float* values) {
  auto run = std::ranges::upper_bound(runs, first, {}, &ElementRun::here) - 1;
  for (const int64_t end = first + count; first < end; ++run) {
    const int64_t n = std::min(end, run->here + run->count) - first;
    read(run->full + first - run->here, n, values);
    first += n, values += n;
  }
}

}  // namespace

ParamUploader::ParamUploader(Stream& stream, int64_t buffer_bytes)
    : stream_(stream), capacity_(buffer_bytes / 2 / int64_t(sizeof(float))) {
  MT_CHECK(capacity_ > 0, "a buffer of {} bytes", buffer_bytes);
  for (Half& half : halves_) half.values.reset(new float[size_t(capacity_)]);
}

void ParamUploader::next_half() {
  halves_[current_].copied = stream_.record();
  current_ = 1 - current_;
  used_ = 0;
  if (halves_[current_].copied) stream_.synchronize(halves_[current_].copied);
}

void ParamUploader::copy(const float* values, const Tensor& to) {
  const auto& keep = halves_[current_].values;
  if (to.dtype() == DType::f32) return stream_.upload(to, keep, values);
  const Tensor wide =
      Tensor::empty(stream_, to.shape(), DType::f32, device::MemoryCategory::buffers);
  stream_.upload(wide, keep, values);
  ops::cast(stream_, wide, to);
}

void ParamUploader::set(const Parameter& p, const ReadElements& read,
                        const std::function<Tensor(const OwnedPart&)>& to) {
  const std::vector<ElementRun> runs = p.runs();
  for (const OwnedPart& part : owned_parts(p)) {
    const Tensor all = to(part);
    for (int64_t done = 0, n = 0; done < part.count; done += n) {
      if (used_ == capacity_) next_half();
      n = std::min(part.count - done, capacity_ - used_);
      float* values = halves_[current_].values.get() + used_;
      read_runs(runs, part.in_param + done, n, read, values);
      copy(values, all.flat(done, {n}));
      used_ += n;
    }
  }
}

void ParamUploader::set_weights(const Parameter& p, const ReadElements& read) {
  const auto at = [](const OwnedPart& part, const Tensor& t) {
    return t.flat(part.in_range, {part.count});
  };
  set(p, read, [&](const OwnedPart& part) { return at(part, part.range->weights()); });
  for (const OwnedPart& part : owned_parts(p))
    if (part.range->master && part.range->value)
      ops::cast(stream_, at(part, part.range->master), at(part, part.range->value));
}

}  // namespace mtrain::model
