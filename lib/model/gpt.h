// The GPT consists of embedding, blocks and head. A spec::ModelSpec describes it; docs/models.md
// lists the families of models that it computes.
#pragma once
#include <limits>
#include <memory>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/recompute.h"
#include "model/stage_pass.h"

namespace mtrain::model {

struct MicroBatch {
  Tensor input_T, label_T;  // int32
  // For each depth of multi-token prediction: the inputs that are so many tokens later, and their
  // labels.
  std::vector<Tensor> further_input_T = {}, further_label_T = {};
  SequenceInfo seq;
};

// Which part of the model a Gpt is: all of it (the default), or a stage of a pipeline.
struct StageSpec {
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();  // layers [begin, end)
  bool embedding = true, head = true;
  // The layers of multi-token prediction and the final norm are with the head, or apart from it: in
  // the stage before. In training that stage sends the head the rows of depth 0, 1, ..., one depth
  // below the other.
  bool sends_depths = false, receives_depths = false;
  bool predicts() const { return sends_depths || (head && !receives_depths); }
  // Set if a stage after the first needs the token table, and is on another rank. Both ranks then
  // have the table, in a unit of its own, so that its layout is the same on both.
  bool shares_table = false;
};

class Gpt {
 public:
  // Declares the stage's parameters in `params`; materialize them before use. The stages of a rank
  // share `params`, and declare their parameters in the order of stages. No sequence is longer than
  // `positions`.
  Gpt(Stream& stream, ParamStore& params, const spec::ModelSpec& model, int64_t positions,
      const Recompute& recompute = {}, const ModelImpls& impls = {}, const StageSpec& stage = {});
  Gpt(const Gpt&) = delete;  // the blocks point into it
  Gpt& operator=(const Gpt&) = delete;

  // x_TH comes from the stage before, and is absent if this stage has the embedding. Returns the
  // tensor for the next stage. A stage with the head returns an absent tensor, and adds the
  // micro-batch's summed loss to request.total. Keeps what backward() needs if step.training.
  Tensor forward(Step& step, const MicroBatch& batch, const LossRequest& request,
                 const Tensor& x_TH = {});
  // Runs the backward of the last forward() with the same stash, and adds to every parameter's
  // gradient. dy_TH is the gradient of what forward() returned. Returns the gradient of x_TH.
  Tensor backward(Step& step, const MicroBatch& batch, const Tensor& dy_TH = {});
  // Return forward() and backward() as lists of parts, which set_input() hands x_TH or dy_TH. A
  // pass uses `batch` and what `step` refers to until it is done.
  StagePass forward_pass(const Step& step, const MicroBatch& batch, const LossRequest& request);
  StagePass backward_pass(const Step& step, const MicroBatch& batch);
  // Returns (T, padded vocabulary) in fp32, for the whole model; (rows, padded vocabulary) if only
  // the logits of these rows of the micro-batch are wanted.
  Tensor logits(Step& step, const MicroBatch& batch, const std::vector<int64_t>& rows = {});

  const spec::ModelSpec& spec() const { return spec_; }
  const StageSpec& stage() const { return stage_; }
  // Returns the units of all parameters that the stage uses.
  std::vector<ParamUnit*> units() const;
  // The shapes of this rank's rows of the tensors that come from the stage before, and that go to
  // the next one.
  Shape input_shape(const SequenceInfo& seq, bool training) const;
  Shape result_shape(const SequenceInfo& seq, bool training) const;

 private:
  struct Group {
    size_t begin, end;  // blocks_[begin, end)
    bool recompute;
    int64_t depth = 0;  // of multi-token prediction
  };
  void declare_head(ParamStore& params, const ModelImpls& impls);
  void group_layers(const Recompute& recompute);
  // Add the parts of a group of layers.
  void add_forward(StagePass& pass, const Group& g);
  void add_backward(StagePass& pass, const Group& g);
  // Whether the step runs the layers of multi-token prediction on this stage.
  bool predicts(const Step& step) const { return step.training && !depths_.empty(); }
  Shape rows_shape(const SequenceInfo& seq, bool of_depths) const;
  // Add the parts of a stage that sends depths: of its forward after the model's layers, and of its
  // backward before them.
  void add_sent_depths(StagePass& pass, const MicroBatch& batch);
  void add_sent_depths_backward(StagePass& pass, const MicroBatch& batch);
  void add_depth_gradient(StagePass& p, int64_t depth);
  // Adds the forward of a stage that receives depths.
  void add_received_depths(StagePass& pass, const MicroBatch& batch, const LossRequest& request);
  // Returns a forward that ends before the head.
  StagePass blocks_pass(const Step& step, const MicroBatch& batch);
  void before_head(Step& step);
  void after_head(Step& step);
  void forward_segment(StagePass& p, const Group& g, size_t layer, size_t segment);
  void recompute(StagePass& p, const Group& g, size_t layer);
  void backward_segment(StagePass& p, const Group& g, size_t layer, size_t segment);
  ops::Destination destination_before(size_t layer);
  // Whether a group's backward is the last of the micro-batch that adds to its gradients. A layer
  // that computes several depths runs depth 1 last.
  bool completes(const Group& g) const { return !spec_.mtp.repeated || g.depth <= 1; }
  void before_backward(ParamHooks& hooks, ParamUnit& unit, const Group& g) const;
  void after_backward(ParamHooks& hooks, ParamUnit& unit, const Group& g) const;

  // Whether the output layer uses the embedding's own table, whose gradient is ready only when the
  // embedding has added to it. So does that of multi-token prediction.
  bool borrows_table() const { return spec_.tied_embeddings && !copies_table(); }
  // Whether the output layer has a copy of the table, and alone adds to its gradient on this rank.
  bool copies_table() const {
    return spec_.tied_embeddings && stage_.shares_table && spec_.mtp.depths == 0;
  }

  const spec::ModelSpec spec_;
  StageSpec stage_;
  std::shared_ptr<TensorParallel> tensor_;
  RotarySet rotary_;
  // The units of the output layer's weight and of the head; null without a head. With tied
  // embeddings the former holds the token table.
  ParamUnit *table_unit_ = nullptr, *head_unit_ = nullptr;
  std::vector<ParamUnit*> embedding_units_;
  std::unique_ptr<Embedding> embedding_;
  SharedByDepths shared_;
  std::vector<Block> blocks_;
  std::unique_ptr<Head> head_;
  std::unique_ptr<Embedding> further_embedding_;  // of multi-token prediction
  std::vector<Group> groups_;
  std::vector<Group> depths_;  // the layer of each depth of multi-token prediction
};

}  // namespace mtrain::model
