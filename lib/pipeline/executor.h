// Does a rank's list of actions: enqueues computations, sends and receives on their streams.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "pipeline/pipeline.h"

namespace mtrain {

// Compute waits for the receive of what it needs, and a send for the compute before it. With
// overlap a receive waits for nothing but the one before it on its channel, and compute for no
// send. Without, the messages between two computations start together, when compute has come
// there, and compute waits for them.
//
// A forward and a backward that run together take turns, segment by segment of their layers, the
// backward first; what one of them sends need not wait for the other's end.
class Executor {
 public:
  Executor(const PipelineLinks& links, const PipelineStages& stages, int64_t all_stages,
           const PipelineOptions& options, const MicroBatches& work, int64_t& place)
      : links_(links),
        stages_(stages),
        all_stages_(all_stages),
        options_(options),
        work_(work),
        place_(place),
        outputs_(work.on_ready) {}

  void run(const ActionList& list);

 private:
  // What a tensor from another stage is, and when compute may read it.
  struct Incoming {
    Tensor data;
    Event there;
  };
  // A stage's share of a micro-batch, from its first action to its last.
  struct Chunk {
    explicit Chunk(const WgradQueue::OnReady& on_ready) : wgrad(on_ready) {}
    Incoming x, dy;
    Tensor y, dx;  // until they are sent
    Stash stash;
    WgradQueue wgrad;
  };

  class Place;
  // A forward or a backward on its way; it awaits its input when its first part is enqueued.
  struct Running {
    Action action;
    Chunk* chunk;
    std::optional<StagePass> pass = {};
    bool done() const { return pass && pass->done(); }
  };

  Chunk& chunk(int64_t stage, int64_t micro_batch);
  size_t compute(const ActionList& list, size_t next);  // returns what comes next
  size_t pair(const ActionList& list, size_t next);
  Running start(const Action& a) { return {a, &chunk(a.stage, a.micro_batch)}; }
  LossRequest loss_request(const MicroBatch& batch) const;
  StagePass pass_of(const Running& r);
  void advance(Running& r);
  void finish(Running& r);
  bool waits_for_send(const Running& r) const;
  bool waits_for_end(const Running& r) const;
  void weight_gradients(const Action& a);
  void run_delayed();
  void shard(const Action& a);
  void send(const Action& a);
  void receive(const Action& a);
  void await_messages();
  Tensor await(Incoming& incoming);
  Step step_of(const Action& a, Chunk& c);
  void stay_near();

  const PipelineLinks& links_;
  const PipelineStages& stages_;
  const int64_t all_stages_;
  const PipelineOptions& options_;
  const MicroBatches& work_;
  int64_t& place_;
  std::map<std::pair<int64_t, int64_t>, Chunk> chunks_;  // by stage and micro-batch
  std::vector<Action> delayed_;  // backwards whose weight gradients wait for the gradient's send
  WgradQueue outputs_;           // of the output layer, which wait for the list's end
  std::vector<Event> messages_;  // that the next computation waits for, without overlap
  std::deque<Event> computed_;   // after the last few computations
};

}  // namespace mtrain
