// The GPT: embedding, blocks, head. One description covers Llama 2/3, Qwen 2/3 (dense), Mistral and
// GPT-2.
#pragma once
#include <memory>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"

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

class Gpt {
 public:
  // Declares its parameters in `params`; materialize them before use. `positions`: the longest
  // sequence it will see.
  Gpt(Stream& on, ParamStore& params, const GptConfig& c, int64_t positions,
      const Recompute& recompute = {}, const ModelParts& parts = {});
  Gpt(const Gpt&) = delete;  // the blocks point into it
  Gpt& operator=(const Gpt&) = delete;

  // Adds the micro-batch's summed loss to request.total. Where step.training, keeps what backward()
  // needs.
  void forward(Step& step, const MicroBatch& batch, const LossRequest& request);
  // The mirror of the last forward(); accumulates every parameter's gradient.
  void backward(Step& step, const MicroBatch& batch);
  // (T, this rank's rows of the padded vocabulary), fp32.
  Tensor logits(Step& step, const MicroBatch& batch);

  const GptConfig& config() const { return c_; }

 private:
  struct Group {
    size_t begin, end;  // layers
    bool recompute;
  };
  Hidden run_blocks(Step& step, const MicroBatch& batch);
  Hidden forward_group(Step& step, const Group& g, Hidden h);
  Tensor backward_group(Step& step, const Group& g, Tensor d_TH);
  std::vector<ParamUnit*> head_units() const;  // a tied table is the embedding's

  GptConfig c_;
  RotaryTables rotary_;
  ParamUnit *embedding_unit_, *head_unit_;
  std::vector<ParamUnit*> block_units_;
  std::unique_ptr<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::unique_ptr<Head> head_;
  std::vector<Group> groups_;
};

}  // namespace mtrain
