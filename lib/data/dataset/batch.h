// Makes micro-batches of samples: defines which rank computes which sample in which step.
#pragma once
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "data/dataset/dataset.h"

namespace mtrain::data {

// The positions [first, first + count) of a full sequence.
struct PositionRun {
  int64_t first, count;
};

// A micro-batch of B sequences, or a rank's share of it, of S tokens each. Token s of sequence b is
// element s * B + b. A sequence is a sample.
//
// Packs are different: all packs of a micro-batch follow each other in one sequence, so B is 1. A
// document attends only to itself and counts its own positions, whether the next pack lies beside
// it or after it. One sequence keeps the rows of each document contiguous. Attention, cuDNN and
// context parallelism need that, and they treat n packs of S tokens as one pack of n S. Rows are
// packs of one document each, which differ in length.
struct Batch {
  int64_t B = 0, S = 0;
  std::vector<int32_t> input, label, position;  // (S * B); a label of -1 has no loss
  std::vector<int32_t> valid;                   // (S * B); 0 marks padding; empty: there is none
  int64_t unmasked = 0;                         // labels other than -1
  std::vector<int64_t> documents;  // lengths, as in Sample, over all ranks; empty: not packed
  int64_t packs = 0;               // how many follow each other; 0: not packed
  std::vector<int32_t> pack;       // (S): the pack of each token; empty: there are not several
  std::vector<PositionRun> runs;   // the positions of a share; empty: all
  // What multi-token prediction reads at each depth k, from 1: for a token, the input and the label
  // that are k later. Where the sequence or the document has no such token, 0 and -1.
  struct Further {
    std::vector<int32_t> input, label;
    int64_t unmasked = 0;
  };
  std::vector<Further> further;

  int64_t samples() const { return packs > 0 ? packs : B; }
  int64_t tokens() const;  // without padding
};

// Returns the part of `whole` that rank `rank` of `ranks` computes under context parallelism. Each
// document, or the full sequence if it is not packed, is cut into 2 * ranks chunks. A rank gets
// chunks `rank` and 2 * ranks - 1 - rank: all ranks then have the same work in causal attention.
//
// An unpacked sequence must be a multiple of 2 * ranks. Documents are padded to such a multiple
// with masked tokens, and the share's `documents` are their padded lengths. A last document of
// masked tokens then makes a packed share a multiple of `multiple`. The share's `runs` number the
// tokens as in `whole`, and the padding from whole.S upwards; padding counts to the first pack.
Batch share_of_batch(const Batch& whole, int64_t rank, int64_t ranks, int64_t multiple = 1);

// Fills `further` of a full micro-batch.
void add_further_tokens(Batch& whole, int64_t depths);

// Appends a document of masked tokens, all at position 0, to rows. Their length is then a multiple
// of `multiple`. Other batches have such a length, and stay as they are.
Batch pad_rows(Batch batch, int64_t multiple);

struct LoaderOptions {
  int64_t global_batch = 1;  // samples per step, over all data-parallel ranks
  int64_t micro_batch = 1;   // samples per micro-batch of one rank
  int64_t dp_rank = 0, dp_size = 1;
  bool prefetch = true;  // prepares the next micro-batch in the background
};

// Makes the micro-batches of training. With G = global_batch, the global batch of step n has the
// samples [n G, n G + G) of the data set, whatever the number of ranks. Therefore a run can resume
// at any step and under any layout. Micro-batch k of rank r of R has n = micro_batch of these
// samples, beginning with number (k R + r) n of the global batch. begin_at() moves the batches, for
// a run whose G has changed.
class BatchLoader {
 public:
  // Throws UserError if global_batch is not a multiple of micro_batch * dp_size.
  BatchLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  BatchLoader(const BatchLoader&) = delete;

  // Makes the global batch of step `step` begin with sample `sample`, and the batches of later
  // steps follow it. Without this call, step 0 begins with sample 0.
  void begin_at(int64_t step, int64_t sample);

  int64_t micro_batches() const { return micro_batches_; }  // per step on this rank
  // Any order of calls is allowed; the order of training is fast, since its batches are prefetched.
  Batch micro_batch(int64_t step, int64_t k);

 private:
  Batch make(int64_t step, int64_t k) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  int64_t micro_batches_ = 0;
  int64_t first_step_ = 0, first_sample_ = 0;  // as begin_at() sets them
  int64_t next_step_ = -1, next_k_ = -1;
  std::future<Batch> next_;
};

// Makes the batches of an evaluation: the first samples of the data set in order, each once. Unused
// places of the last batch are masked. In packs, each such place is a document of padding.
class ValidationLoader {
 public:
  // `samples` is how many samples to visit; 0, or more than the data set has, means all. Only
  // micro_batch, dp_rank and dp_size of the options matter.
  ValidationLoader(std::shared_ptr<const Dataset> dataset, int64_t samples,
                   const LoaderOptions& options);

  int64_t samples() const { return samples_; }
  int64_t batches() const;  // of this rank; the same number on every rank
  Batch batch(int64_t i) const;

 private:
  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  int64_t samples_;
};

}  // namespace mtrain::data
