#include "data/dataset/batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::data {
namespace {

void leave_out_if_all_valid(Batch& batch) {
  if (std::ranges::count(batch.valid, 0) == 0) batch.valid.clear();
}

// Returns samples first to first + n - 1; those at or after `limit` are masked.
Batch collect_samples(const Dataset& dataset, int64_t first, int64_t n, int64_t limit) {
  const int64_t length = dataset.seq_length();
  const bool packed = dataset.packed();
  Batch batch = packed ? Batch{.B = 1, .S = n * length, .packs = n} : Batch{.B = n, .S = length};
  const auto tokens = size_t(n * length);
  batch.input.assign(tokens, 0);
  batch.label.assign(tokens, -1);
  batch.position.assign(tokens, 0);
  batch.valid.assign(tokens, 0);
  Sample sample;
  for (int64_t b = 0; b < n && first + b < limit; ++b) {
    sample.documents.clear(), sample.padding = 0;
    dataset.sample(first + b, sample);
    MT_CHECK(sample.documents.empty() != packed, "a sample with {} documents in a data set {}",
             sample.documents.size(), packed ? "of packs" : "without packs");
    batch.documents.insert(batch.documents.end(), sample.documents.begin(), sample.documents.end());
    for (int64_t s = 0; s < length; ++s) {
      const int64_t t = packed ? b * length + s : s * n + b;
      batch.input[t] = sample.input[s];
      batch.label[t] = sample.label[s];
      batch.position[t] = sample.position[s];
      batch.valid[t] = s < length - sample.padding;
    }
    batch.unmasked += length - std::count(sample.label.begin(), sample.label.end(), -1);
  }
  if (packed) {
    const int64_t absent = std::clamp<int64_t>(first + n - limit, 0, n);
    batch.documents.insert(batch.documents.end(), size_t(absent), length);
    for (int64_t b = 0; n > 1 && b < n; ++b)
      batch.pack.insert(batch.pack.end(), size_t(length), int32_t(b));
  }
  leave_out_if_all_valid(batch);
  return batch;
}

// Returns rows first to first + n - 1, one after the other; those at or after `limit` are left out.
Batch collect_rows(const Dataset& dataset, int64_t first, int64_t n, int64_t limit) {
  Batch batch{.B = 1, .packs = n};
  Sample sample;
  for (int64_t b = 0; b < n && first + b < limit; ++b) {
    dataset.sample(first + b, sample);
    const auto length = int64_t(sample.input.size());
    MT_CHECK(sample.documents == std::vector{length}, "a row of {} documents",
             sample.documents.size());
    batch.input.insert(batch.input.end(), sample.input.begin(), sample.input.end());
    batch.label.insert(batch.label.end(), sample.label.begin(), sample.label.end());
    batch.position.insert(batch.position.end(), sample.position.begin(), sample.position.end());
    batch.documents.push_back(length);
    if (n > 1) batch.pack.insert(batch.pack.end(), size_t(length), int32_t(b));
  }
  batch.S = int64_t(batch.input.size());
  batch.unmasked = batch.S - std::ranges::count(batch.label, -1);
  // A rank without a row computes on padding.
  return batch.S > 0 ? batch : pad_rows(std::move(batch), 2);
}

Batch collect(const Dataset& dataset, int64_t first, int64_t limit, const LoaderOptions& o) {
  return dataset.fixed_length() ? collect_samples(dataset, first, o.micro_batch, limit)
                                : collect_rows(dataset, first, o.micro_batch, limit);
}

void check_ranks(const LoaderOptions& o) {
  if (o.micro_batch < 1)
    throw UserError(fmt::format("the micro-batch size is {}", o.micro_batch),
                    "set it to 1 or more");
  MT_CHECK(o.dp_size > 0 && o.dp_rank >= 0 && o.dp_rank < o.dp_size, "dp rank {} of {}", o.dp_rank,
           o.dp_size);
}

void resize_further(Batch& batch, size_t tokens) {
  for (Batch::Further& f : batch.further) f.input.resize(tokens, 0), f.label.resize(tokens, -1);
}

int64_t count_unmasked(const std::vector<int32_t>& labels) {
  return int64_t(labels.size()) - std::ranges::count(labels, -1);
}

// Appends tokens of the full sequence, and padding, to a rank's share.
class Share {
 public:
  Share(const Batch& whole, Batch& share) : whole_(whole), share_(share) {}
  void take(int64_t first, int64_t count) {
    add_run(first, count);
    const auto part = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
      const auto begin = from.begin() + first * whole_.B;
      to.insert(to.end(), begin, begin + count * whole_.B);
    };
    part(whole_.input, share_.input);
    part(whole_.label, share_.label);
    part(whole_.position, share_.position);
    for (size_t k = 0; k < whole_.further.size(); ++k) {
      part(whole_.further[k].input, share_.further[k].input);
      part(whole_.further[k].label, share_.further[k].label);
    }
    if (!whole_.pack.empty()) part(whole_.pack, share_.pack);
    if (whole_.valid.empty())
      share_.valid.resize(share_.input.size(), 1);
    else
      part(whole_.valid, share_.valid);
  }
  void pad(int64_t count) {
    add_run(whole_.S + padding_, count);
    padding_ += count;
    const auto all = size_t(share_.S * whole_.B);
    share_.input.resize(all, 0);
    share_.label.resize(all, -1);
    share_.position.resize(all, 0);
    share_.valid.resize(all, 0);
    resize_further(share_, all);
    if (!whole_.pack.empty()) share_.pack.resize(all, 0);
  }

 private:
  void add_run(int64_t first, int64_t count) {
    auto& runs = share_.runs;
    share_.S += count;
    if (!runs.empty() && runs.back().first + runs.back().count == first)
      runs.back().count += count;
    else if (count > 0)
      runs.push_back({first, count});
  }
  const Batch& whole_;
  Batch& share_;
  int64_t padding_ = 0;
};

}  // namespace

Batch share_of_batch(const Batch& whole, int64_t rank, int64_t ranks, int64_t multiple) {
  const int64_t chunks = 2 * ranks;
  Batch share{.B = whole.B, .packs = whole.packs};
  share.further.resize(whole.further.size());
  Share to(whole, share);
  int64_t first = 0;
  for (const int64_t length : whole.documents.empty() ? std::vector{whole.S} : whole.documents) {
    const int64_t chunk =
        whole.documents.empty() ? exact_div(length, chunks) : ceil_div(length, chunks);
    for (const int64_t number : {rank, chunks - 1 - rank}) {
      const int64_t begin = std::min(length, number * chunk),
                    end = std::min(length, (number + 1) * chunk);
      to.take(first + begin, end - begin);
      to.pad(chunk - (end - begin));
    }
    if (!whole.documents.empty()) share.documents.push_back(chunk * chunks);
    first += length;
  }
  MT_CHECK(first == whole.S, "documents of {} tokens in a sequence of {}", first, whole.S);
  const int64_t rest =
      whole.documents.empty() ? 0 : round_up(share.S, std::lcm(2, multiple)) - share.S;
  to.pad(rest);
  if (rest > 0) share.documents.push_back(rest / 2 * chunks);
  leave_out_if_all_valid(share);
  share.unmasked = count_unmasked(share.label);
  for (Batch::Further& f : share.further) f.unmasked = count_unmasked(f.label);
  return share;
}

void add_further_tokens(Batch& whole, int64_t depths) {
  const auto lengths = whole.documents.empty() ? std::vector{whole.S} : whole.documents;
  const size_t tokens = whole.input.size();
  whole.further.clear();
  for (int64_t k = 1; k <= depths; ++k) {
    Batch::Further f;
    f.input.assign(tokens, 0), f.label.assign(tokens, -1);
    int64_t first = 0;
    for (const int64_t length : lengths) {
      for (int64_t t = first * whole.B; t < (first + length - k) * whole.B; ++t) {
        const auto later = size_t(t + k * whole.B);
        f.input[size_t(t)] = whole.input[later], f.label[size_t(t)] = whole.label[later];
      }
      first += length;
    }
    f.unmasked = count_unmasked(f.label);
    whole.further.push_back(std::move(f));
  }
}

int64_t Batch::tokens() const {
  return valid.empty() ? B * S : int64_t(std::ranges::count(valid, 1));
}

Batch pad_rows(Batch batch, int64_t multiple) {
  const int64_t end = round_up(std::max<int64_t>(batch.S, 1), multiple), rest = end - batch.S;
  if (rest == 0 || batch.packs == 0) return batch;
  if (batch.valid.empty()) batch.valid.assign(size_t(batch.S), 1);
  batch.input.resize(size_t(end), 0);
  batch.label.resize(size_t(end), -1);
  batch.valid.resize(size_t(end), 0);
  resize_further(batch, size_t(end));
  // Nothing reads the padding's results. Its own positions might be beyond the longest row's.
  batch.position.resize(size_t(end), 0);
  if (batch.packs > 1) batch.pack.resize(size_t(end), 0);
  batch.documents.push_back(rest);
  batch.S = end;
  return batch;
}

BatchLoader::BatchLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  check_ranks(options_);
  const int64_t G = options_.global_batch, unit = options_.micro_batch * options_.dp_size;
  if (G < 1 || G % unit != 0)
    throw UserError(
        fmt::format("global_batch_size {} is not a multiple of micro_batch_size({}) * dp({}) = {}",
                    G, options_.micro_batch, options_.dp_size, unit),
        fmt::format("use {} or another multiple of {}", std::max(unit, round_up(G, unit)), unit));
  micro_batches_ = G / unit;
}

Batch BatchLoader::make(int64_t step, int64_t k) const {
  const auto& o = options_;
  const int64_t first = first_sample_ + (step - first_step_) * o.global_batch +
                        (k * o.dp_size + o.dp_rank) * o.micro_batch;
  return collect(*dataset_, first, first + o.micro_batch, o);
}

void BatchLoader::begin_at(int64_t step, int64_t sample) {
  MT_CHECK(step >= 0 && sample >= 0, "step {} with sample {}", step, sample);
  if (next_.valid()) next_.wait();  // it reads the members that change here
  next_ = {};
  first_step_ = step, first_sample_ = sample;
}

Batch BatchLoader::micro_batch(int64_t step, int64_t k) {
  MT_CHECK(step >= first_step_ && k >= 0 && k < micro_batches_, "micro-batch {} of step {}", k,
           step);
  const bool ready = next_.valid() && step == next_step_ && k == next_k_;
  if (next_.valid() && !ready) next_.wait();  // the prefetched batch is not the requested one
  Batch batch = ready ? next_.get() : make(step, k);
  if (options_.prefetch) {
    next_step_ = k + 1 < micro_batches_ ? step : step + 1;
    next_k_ = k + 1 < micro_batches_ ? k + 1 : 0;
    next_ =
        std::async(std::launch::async, [this, s = next_step_, m = next_k_] { return make(s, m); });
  }
  return batch;
}

ValidationLoader::ValidationLoader(std::shared_ptr<const Dataset> dataset, int64_t samples,
                                   const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  check_ranks(options_);
  MT_CHECK(samples >= 0, "{} validation samples", samples);
  samples_ = samples == 0 ? dataset_->size() : std::min(samples, dataset_->size());
}

int64_t ValidationLoader::batches() const {
  return ceil_div(samples_, options_.micro_batch * options_.dp_size);
}

Batch ValidationLoader::batch(int64_t i) const {
  MT_CHECK(i >= 0 && i < batches(), "batch {} of {}", i, batches());
  const int64_t first = (i * options_.dp_size + options_.dp_rank) * options_.micro_batch;
  return collect(*dataset_, first, samples_, options_);
}

}  // namespace mtrain::data
