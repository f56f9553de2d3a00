// The GPT consists of embedding, blocks and head. GptConfig describes Llama 2/3, Qwen 2/3 (dense),
// Mistral and GPT-2.
#pragma once
#include <limits>
#include <memory>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/stage_pass.h"

namespace mtrain::model {

struct MicroBatch {
  Tensor input_T, label_T;  // int32
  SequenceInfo seq;
};

// Which activations are computed again in backward instead of kept.
struct Recompute {
  // Selective recomputation: that of the attention cores.
  bool attention_core = false;
  // Full recomputation: the stage's first `layers` layers form groups of `group` layers each, of
  // which only the input is kept. The other layers keep everything. 0: no layer takes part.
  int64_t group = 0, layers = 0;
};

// Which part of the model a Gpt is: all of it, or a pipeline's stage.
struct StageSpec {
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();  // layers
  bool embedding = true, head = true;
  // Set where embeddings are tied and the first and the last stage are on different ranks. Both
  // then have the table, in a unit of its own, so that it has the same layout on both.
  bool shares_table = false;
};

class Gpt {
 public:
  // Declares its parameters in `params`; materialize them before use. The stages of a rank share
  // `params`, and add to it in their order. No sequence is longer than `positions`.
  Gpt(Stream& stream, ParamStore& params, const GptConfig& c, int64_t positions,
      const Recompute& recompute = {}, const ModelImpls& parts = {}, const StageSpec& part = {});
  Gpt(const Gpt&) = delete;  // the blocks point into it
  Gpt& operator=(const Gpt&) = delete;

  // x_TH comes from the stage before, and is absent where the part has the embedding. Returns the
  // tensor for the next stage; with the head nothing, and adds the micro-batch's summed loss to
  // request.total. Where step.training, keeps what backward() needs.
  Tensor forward(Step& step, const MicroBatch& batch, const LossRequest& request,
                 const Tensor& x_TH = {});
  // Mirrors the last forward() with this stash, and adds to every parameter's gradient. dy_TH is
  // the gradient of what forward() returned. Returns the gradient of x_TH.
  Tensor backward(Step& step, const MicroBatch& batch, const Tensor& dy_TH = {});
  // The same as a list of parts. A pass uses `batch` and what `step` refers to until it is done.
  StagePass forward_pass(const Step& step, const MicroBatch& batch, const LossRequest& request,
                         const Tensor& x_TH = {});
  StagePass backward_pass(const Step& step, const MicroBatch& batch, const Tensor& dy_TH = {});
  // Returns (T, this rank's rows of the padded vocabulary), fp32.
  Tensor logits(Step& step, const MicroBatch& batch);

  const GptConfig& config() const { return c_; }
  const StageSpec& part() const { return part_; }
  // Returns the units of all parameters that it uses.
  std::vector<ParamUnit*> units() const;
  // How many of its units come before the head's. They are the first units of `params` where it was
  // the first to add to it.
  size_t units_before_head() const { return embedding_units_.size() + block_units_.size(); }
  // The shape of this rank's rows of the tensor that goes from stage to stage.
  Shape hidden_shape(const SequenceInfo& seq) const;

 private:
  struct Group {
    size_t begin, end;  // of blocks_
    bool recompute;
  };
  // A forward up to the head.
  StagePass blocks_pass(const Step& step, const MicroBatch& batch, const Tensor& x_TH);
  void before_head(Step& step);
  void after_head(Step& step);
  void forward_segment(StagePass& p, const Group& g, size_t layer, size_t segment);
  void recompute(StagePass& p, const Group& g, size_t layer);
  void backward_segment(StagePass& p, const Group& g, size_t layer, size_t segment);

  // Whether the output layer uses the embedding's own table, whose gradient is ready only when the
  // embedding has added to it.
  bool borrows_table() const { return c_.tied_embeddings && !part_.shares_table; }
  // Whether the output layer has a copy of the table, and alone adds to its gradient on this rank.
  bool copies_table() const { return c_.tied_embeddings && part_.shares_table; }

  GptConfig c_;
  StageSpec part_;
  std::shared_ptr<TensorParallel> tensor_;
  RotaryTables rotary_;
  // Null without a head. The table is that of the output layer, which tied embeddings share.
  ParamUnit *table_unit_ = nullptr, *head_unit_ = nullptr;
  std::vector<ParamUnit*> embedding_units_, block_units_;
  std::unique_ptr<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::unique_ptr<Head> head_;
  std::vector<Group> groups_;
};

}  // namespace mtrain::model
