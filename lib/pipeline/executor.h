// The executor runs a rank's list of actions: it enqueues computations, sends and receives on their
// streams.
#pragma once
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "pipeline/pipeline.h"

namespace mtrain::pipeline {

// A computation waits for the receive of its input, and a send waits for the computation of its
// tensor. With overlap, a receive waits only for the receive before it on its channel, and no
// computation waits for a send, except for that of a paired backward's gradient under
// PairedGradient::in_order. Without overlap, the messages between two computations start together
// once the first computation has ended, or one by one, and the second one waits for them.
//
// A forward and a backward that run together are enqueued part by part: in turns, the backward
// first, or in the order of schedule/pair_order.h. Exchanges of experts' rows then travel while the
// other pass computes. If weight gradients are delayed, those of a backward that runs alone also
// fill the time of its exchanges. When one of two passes has ended, its tensor can be sent before
// the other ends.
class Executor {
 public:
  Executor(const PipelineLinks& links, const PipelineStages& stages, int64_t all_stages,
           const plan::PipelineOptions& options, const MicroBatches& work, RunAhead& run_ahead,
           PassPairs& pairs)
      : links_(links),
        stages_(stages),
        all_stages_(all_stages),
        options_(options),
        work_(work),
        run_ahead_(run_ahead),
        pairs_(pairs),
        outputs_(work.on_ready) {}

  void run(const schedule::ActionList& list);

 private:
  // A tensor from another stage, which compute may read after `ready`.
  struct PendingTensor {
    Tensor data;
    Event ready;
  };
  // What a stage keeps of one micro-batch, from the first action to the last.
  struct Chunk {
    explicit Chunk(const model::WgradQueue::OnReady& on_ready) : wgrad(on_ready) {}
    PendingTensor x, dy;
    Tensor y, dx;  // the results, held until they are sent
    model::Stash stash;
    model::WgradQueue wgrad;
  };

  class DataflowScope;
  // A forward or a backward in progress. It waits for its input when its first part is enqueued.
  struct Running {
    schedule::Action action;
    Chunk* chunk;  // null once its result is stored
    model::StagePass pass;
    bool begun = false;
    bool done() const { return begun && pass.done(); }
  };
  Chunk& chunk(int64_t stage, int64_t micro_batch);
  // Runs the computation at list[next]. Returns the index of the first action that is not done.
  size_t compute(const schedule::ActionList& list, size_t next);
  // Runs the forward at list[next] together with the backward after it and, with overlap, the sends
  // that follow them. Returns what compute() returns.
  size_t pair(const schedule::ActionList& list, size_t next);
  // Runs a forward (null: none) and a backward in this order. Calls `after_step` after each step.
  void run_ordered(const PassOrder& order, Running* forward, Running& backward,
                   const std::function<void()>& after_step = {});
  // A pass that runs alone may bring tokens to their experts in chunks.
  Running start(const schedule::Action& a, bool alone = true) {
    return {a, &chunk(a.stage, a.micro_batch), pass_of(a, alone)};
  }
  // Gives the pass its input, unless it has begun.
  void begin(Running& r);
  model::LossRequest loss_request(const model::MicroBatch& batch) const;
  model::StagePass pass_of(const schedule::Action& a, bool alone);
  // Runs the next part of the pass. Its weight gradients run with it, unless `hold` or another
  // setting delays them.
  void advance(Running& r, bool hold = false);
  // Stores the result of a completed pass for the next stage or the previous one. A second call
  // does nothing.
  void finish(Running& r);
  // Whether the weight gradients of a part of a backward wait until the gradient of the stage's
  // input is sent; they then run while it travels.
  bool waits_for_send(const schedule::Action& a, const model::StagePass::Part& part) const;
  // Whether the weight gradients of a part of a backward run only after the pass has ended.
  bool keeps_wgrads(const schedule::Action& a, const model::StagePass::Part& part) const;
  PassPairs::KeepsWgrads keeps_wgrads_of(const schedule::Action& a) const {
    return [this, a](const model::StagePass::Part& part) { return keeps_wgrads(a, part); };
  }
  // Whether the next part's weight gradients, those of the output layer, wait for the list's end.
  bool waits_for_end(const Running& r) const;
  void weight_gradients(const schedule::Action& a);
  void run_delayed();
  // Runs an unshard, reshard or reduce action.
  void change_sharding(const schedule::Action& a);
  void send(const schedule::Action& a);
  void receive(const schedule::Action& a);
  // Without overlap: makes the message wait for the computations before it and, if messages go one
  // by one, for the message before it.
  void await_turn(Stream& channel);
  void await_messages();
  Tensor await(PendingTensor& pending);
  model::Step step_of(const schedule::Action& a, Chunk& c);
  // Blocks the host until at most kMaxInFlight enqueued computations have not ended.
  void limit_run_ahead();

  const PipelineLinks& links_;
  const PipelineStages& stages_;
  const int64_t all_stages_;
  const plan::PipelineOptions& options_;
  const MicroBatches& work_;
  RunAhead& run_ahead_;
  PassPairs& pairs_;
  std::map<std::pair<int64_t, int64_t>, Chunk> chunks_;  // by stage and micro-batch
  // Backwards whose weight gradients run after the send of the gradient of the stage's input.
  std::vector<schedule::Action> delayed_;
  model::WgradQueue outputs_;    // weight gradients of the output layer that run at the list's end
  std::vector<Event> messages_;  // the next computation waits for these messages
  schedule::Action paired_{};    // the last backward that ran together with a forward
};

}  // namespace mtrain::pipeline
