// Sets the parameters of a model from a source of values, each rank reading only what it owns.
#pragma once
#include "checkpoint/train_checkpoint.h"
#include "storage/value_source.h"

namespace mtrain::checkpoint {

// Throws UserError, with `hint`, unless the source has a tensor `name` of this shape.
void require_shape(const storage::ValueSource& source, const std::string& name,
                   const Shape& expected, const std::string& hint);

// Gets bytes of fp32 that are read, and all of them; may be empty.
using ReadProgress = std::function<void(int64_t done, int64_t total)>;
ReadProgress progress_of(const CheckpointParts& parts, std::string_view what);

// Counts the parameters of a model that are read.
class ReadBytes {
 public:
  ReadBytes(model::ParamStore& params, ReadProgress progress);
  void add(const model::Parameter& read);

 private:
  const ReadProgress progress_;
  int64_t done_ = 0, total_ = 0;
};

// Sets the weights that this rank owns of all parameters, from the tensors of their names. Throws
// UserError, with `hint`, if a tensor is absent or has another shape than the layout-free one.
void read_weights(Stream& stream, model::ParamStore& params, const storage::ValueSource& source,
                  const std::string& hint, const ReadProgress& progress = {});

// Sets replicated tensors from those of their names, with the same errors.
void read_replicated(Stream& stream, const std::vector<ReplicatedTensor>& replicated,
                     const storage::ValueSource& source, const std::string& hint);

// Sets the parameters of a model, which may have no gradients, from `source`. What else the model
// depends on (the biases of routers) is set where the source has it, and stays as it is where not.
// Throws UserError, which names the tensor, for one that is absent or of another shape, or has a
// weight that is not finite.
void read_model(Stream& stream, model::ParamStore& params,
                const std::vector<ReplicatedTensor>& replicated, const storage::ValueSource& source,
                const ReadProgress& progress = {});

// Lets a training begin with the weights of `source`, before its first step: nothing is compared
// with an earlier run, and moments, positions and random numbers are those of a new one. What else
// the model depends on is zero where the source lacks it. Throws UserError as read_model() does.
// All ranks call it, under any layout; each reads what it owns.
void start_from(const CheckpointParts& parts, const storage::ValueSource& source);

}  // namespace mtrain::checkpoint
