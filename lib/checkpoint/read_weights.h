// Sets the parameters of a model from a source of values. Each rank reads only the part that it
// owns.
#pragma once
#include "checkpoint/train_checkpoint.h"
#include "storage/value_source.h"

namespace mtrain::checkpoint {

// Throws UserError, with `hint`, unless the source has a tensor `name` of this shape.
void require_shape(const storage::ValueSource& source, const std::string& name,
                   const Shape& expected, const std::string& hint);

// Adds the elements that this rank reads of the tensor `name` of a parameter, in their order.
void add_expected(const model::Parameter& p, const std::string& name,
                  std::vector<storage::ExpectedRun>& expected);

// Receives the number of bytes (as fp32) that have been read, and the total; may be empty.
using ReadProgress = std::function<void(int64_t done, int64_t total)>;
ReadProgress progress_of(const CheckpointParts& parts, std::string_view what);

// Reports how many bytes of a model's parameters have been read.
class ReadBytes {
 public:
  ReadBytes(model::ParamStore& params, ReadProgress progress);
  void add(const model::Parameter& read);

 private:
  const ReadProgress progress_;
  int64_t done_ = 0, total_ = 0;
};

// Decides whether a parameter is read; the others keep their values.
using WhichWeights = std::function<bool(const model::ParamSpec&)>;

// Sets this rank's part of the chosen weights from the tensors with the same names. Throws
// UserError, with `hint`, if a tensor is absent or has a different shape from the full parameter.
void read_weights(Stream& stream, model::ParamStore& params, const storage::ValueSource& source,
                  const WhichWeights& which, const std::string& hint,
                  const ReadProgress& progress = {});

// Sets replicated tensors from the tensors with the same names. Throws the same errors.
void read_replicated(Stream& stream, const std::vector<ReplicatedTensor>& replicated,
                     const storage::ValueSource& source, const std::string& hint);

// Sets the parameters of a model, which may have no gradients, from `source`. Adapters, which a
// base model lacks, keep their initial values. The model's other state (the biases of routers) is
// set if the source has it, and stays unchanged otherwise. Throws UserError, which names the
// tensor, if a tensor is absent, has a different shape, or has a weight that is not finite.
void read_model(Stream& stream, model::ParamStore& params,
                const std::vector<ReplicatedTensor>& replicated, const storage::ValueSource& source,
                const ReadProgress& progress = {});

// Sets the weights of a new training from `source`, before its first step. Compares nothing with an
// earlier run. Moments, positions in the data and random numbers are those of a new run. The
// model's other state is zero if the source lacks it. Throws UserError as read_model() does. All
// ranks must call it, under any layout; each reads its own part.
void start_from(const CheckpointParts& parts, const storage::ValueSource& source);

}  // namespace mtrain::checkpoint
