// The GPT: embedding, blocks, head. One description covers Llama 2/3, Qwen 2/3 (dense), Mistral and
// GPT-2.
#pragma once
#include <limits>
#include <memory>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/stage_pass.h"

namespace mtrain {

struct MicroBatch {
  Tensor input_T, label_T;  // int32
  SequenceInfo seq;
};

// Which activations are computed again in backward instead of kept.
struct Recompute {
  bool attention_core = false;  // selective
  // Full: layers are cut into groups, of which only the input is kept. `group` layers each; 0:
  // none. Only the first `layers` layers take part (the rest keep everything).
  int64_t group = 0, layers = 0;
};

// Which part of the model a Gpt is: all of it, or a pipeline's stage.
struct GptPart {
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();  // layers
  bool embedding = true, head = true;
  // Tied embeddings whose first and last stage are on different ranks: both have the table, in a
  // unit of its own, so that both lay it out alike.
  bool shares_table = false;
};

class Gpt {
 public:
  // Declares its parameters in `params`; materialize them before use. Stages that share a rank
  // share `params`, to which the first is the first to add. `positions`: the longest sequence it
  // will see.
  Gpt(Stream& on, ParamStore& params, const GptConfig& c, int64_t positions,
      const Recompute& recompute = {}, const ModelParts& parts = {}, const GptPart& part = {});
  Gpt(const Gpt&) = delete;  // the blocks point into it
  Gpt& operator=(const Gpt&) = delete;

  // x_TH: from the stage before, absent where the part has the embedding. Returns what the next
  // stage takes; with the head nothing, and the micro-batch's summed loss is added to
  // request.total. Where step.training, keeps what backward() needs.
  Tensor forward(Step& step, const MicroBatch& batch, const LossRequest& request,
                 const Tensor& x_TH = {});
  // The mirror of the last forward() with this stash; accumulates every parameter's gradient.
  // dy_TH: of what forward() returned. Returns that of x_TH.
  Tensor backward(Step& step, const MicroBatch& batch, const Tensor& dy_TH = {});
  // The same in parts. They use `batch` and what `step` refers to until they are done.
  StagePass forward_pass(const Step& step, const MicroBatch& batch, const LossRequest& request,
                         const Tensor& x_TH = {});
  StagePass backward_pass(const Step& step, const MicroBatch& batch, const Tensor& dy_TH = {});
  // (T, this rank's rows of the padded vocabulary), fp32.
  Tensor logits(Step& step, const MicroBatch& batch);

  const GptConfig& config() const { return c_; }
  const GptPart& part() const { return part_; }
  // Of all the parameters that it uses.
  std::vector<ParamUnit*> units() const;
  // Units of its parameters before the head's, which are the first of a ParamStore to which it is
  // the first to add.
  size_t units_before_head() const { return embedding_units_.size() + block_units_.size(); }
  // Of this rank's rows of what goes from stage to stage.
  Shape hidden_shape(const SequenceInfo& seq) const;

 private:
  struct Group {
    size_t begin, end;  // of blocks_
    bool recompute;
  };
  // Up to the head.
  StagePass blocks_pass(const Step& step, const MicroBatch& batch, const Tensor& x_TH);
  void before_head(Step& step);
  void after_head(Step& step);
  void forward_segment(StagePass& p, const Group& g, size_t layer, size_t segment);
  void recompute(StagePass& p, const Group& g, size_t layer);
  void backward_segment(StagePass& p, const Group& g, size_t layer, size_t segment);

  // The output layer has the embedding's table, which becomes ready with the embedding.
  bool borrows_table() const { return c_.tied_embeddings && !part_.shares_table; }
  // It has a copy of it, of which it alone has the gradient on this rank.
  bool copies_table() const { return c_.tied_embeddings && part_.shares_table; }

  GptConfig c_;
  GptPart part_;
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

}  // namespace mtrain
