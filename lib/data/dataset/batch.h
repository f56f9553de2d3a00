// Samples as micro-batches: which rank computes which sample in which step.
#pragma once
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "data/dataset/dataset.h"

namespace mtrain::data {

// Consecutive positions of a whole sequence.
struct PositionRun {
  int64_t first, count;
};

// B micro-batch, S sequence; token s of sample b is element s * B + b.
struct Batch {
  int64_t B = 0, S = 0;
  std::vector<int32_t> input, label, position;  // (S * B); label -1: no loss
  int64_t unmasked = 0;                         // labels that count
  std::vector<int64_t> documents;               // as of the sample, of the whole sequence; B = 1
  std::vector<PositionRun> runs;                // a share's positions; empty: all
};

// What rank `rank` of `ranks` that share every sequence computes: each document, or the sequence
// that is not packed, is cut into 2 * ranks chunks, of which it gets numbers rank and 2 * ranks - 1
// - rank, so that all have the same work in causal attention. The sequence is a multiple of
// 2 * ranks; documents are padded to one with masked tokens, and the share's `documents` are the
// padded lengths. A last document of masked tokens makes the share of packed ones a multiple of
// `multiple`. Runs number the tokens of the whole as it was, and padding from S on.
Batch share_of_batch(const Batch& whole, int64_t rank, int64_t ranks, int64_t multiple = 1);

struct LoaderOptions {
  int64_t global_batch = 1;  // samples per step, over all data-parallel ranks
  int64_t micro_batch = 1;
  int64_t dp_rank = 0, dp_size = 1;
  bool prefetch = true;  // prepares the next micro-batch in the background
};

// The global batch of step n is samples [n G, n G + G) of the data set, whatever the number of
// ranks, so that a run can resume at any step and with any layout. Micro-batch k of rank r is B
// consecutive ones of them, from (k R + r) B.
class BatchLoader {
 public:
  // Throws UserError when global_batch is not a multiple of micro_batch * dp_size.
  BatchLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  BatchLoader(const BatchLoader&) = delete;

  int64_t micro_batches() const { return micro_batches_; }  // per step on this rank
  Batch micro_batch(int64_t step, int64_t k);  // fast in the order of training, right in any

 private:
  Batch make(int64_t step, int64_t k) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  int64_t micro_batches_ = 0;
  int64_t next_step_ = -1, next_k_ = -1;
  std::future<Batch> next_;
};

// The first `samples` samples in order, each once: in the last batch, places without one are
// masked.
class ValidationLoader {
 public:
  // samples 0, or more than there are: all of them, once. Only micro_batch, dp_rank and dp_size of
  // the options count.
  ValidationLoader(std::shared_ptr<const Dataset> dataset, int64_t samples,
                   const LoaderOptions& options);

  int64_t samples() const { return samples_; }
  int64_t batches() const;  // the same on every rank
  Batch batch(int64_t i) const;

 private:
  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  int64_t samples_;
};

}  // namespace mtrain::data
