#include "pipeline/pipeline.h"

#include "pipeline/executor.h"
#include "plan/executed_schedule.h"

namespace mtrain::pipeline {

Pipeline::Pipeline(PipelineLinks links, PipelineStages stages, const schedule::Schedule& schedule,
                   const plan::PipelineOptions& options)
    : links_(std::move(links)),
      stages_(std::move(stages)),
      schedule_(schedule),
      options_(options),
      pairs_(options.pair_costs, options.pair_costs && options.split_wgrad,
             options.head_shares_table) {
  list_ = lower(schedule_).ranks[size_t(links_.rank)];
}

schedule::Schedule Pipeline::lower(const schedule::Schedule& computations) const {
  return executed(computations, plan::lowering_of(options_));
}

void Pipeline::skip_stages(const std::set<int64_t>& stages) {
  const auto here = [&](int64_t stage) { return stages_.contains(stage); };
  for (const int64_t stage : stages)
    MT_CHECK(here(stage) && !here(stage - 1) && !here(stage + 1),
             "stage {} is skipped, and its neighbours are those of the same rank", stage);
  std::erase_if(list_, [&](const schedule::Action& a) {
    return stages.contains(a.stage) &&
           (is_compute(a.kind) || is_send(a.kind) || is_receive(a.kind));
  });
}

void Pipeline::run(const MicroBatches& work) {
  const int64_t all = int64_t(work.batches.size()), flush = schedule_.micro_batches;
  MT_CHECK(all > 0 && all % flush == 0, "{} micro-batches, but the schedule has {}", all, flush);
  RunAhead ahead{dataflow_index_};
  for (int64_t first = 0; first < all; first += flush) {
    const auto part = [&](const auto& values) {
      return std::vector(values.begin() + first, values.begin() + first + flush);
    };
    const std::vector<model::MicroBatch> batches = part(work.batches);
    const MicroBatches one{.batches = batches,
                           .numbers = part(work.numbers),
                           .first = work.first + first,
                           .seed = work.seed,
                           .step = work.step,
                           .training = work.training,
                           .loss = work.loss,
                           .grad_scale = work.grad_scale,
                           .depths = work.depths,
                           .on_ready = work.on_ready,
                           .hooks = work.hooks,
                           .graph_inputs = work.graph_inputs,
                           .experts = work.experts};
    Executor(links_, stages_, schedule_.stages, options_, one, ahead, pairs_).run(list_);
  }
}

void Pipeline::run_one(const MicroBatches& work) {
  MT_CHECK(work.batches.size() == 1 && schedule_.stages == 1, "{} micro-batches, {} stages",
           work.batches.size(), schedule_.stages);
  RunAhead ahead{dataflow_index_};
  Executor(links_, stages_, 1, options_, work, ahead, pairs_)
      .run({{schedule::ActionKind::F, 0, 0}, {schedule::ActionKind::B, 0, 0}});
}

void Pipeline::forward(const MicroBatches& work) {
  const schedule::Schedule lowered = lower(forward_only(schedule_, int64_t(work.batches.size())));
  RunAhead ahead{dataflow_index_};
  Executor(links_, stages_, schedule_.stages, options_, work, ahead, pairs_)
      .run(lowered.ranks[size_t(links_.rank)]);
}

void Pipeline::sum(const Tensor& values) const {
  if (links_.size == 1) return;
  links_.stream->wait(links_.compute->record());  // edge: values -> their sum
  links_.all.all_reduce(values, comm::Reduce::sum, *links_.stream);
  links_.compute->wait(links_.stream->record());
}

void Pipeline::finish_grads(model::ParamStore& params) const {
  if (links_.table.size() < 2) return;
  // The table has a unit of its own, which is sharded in the same way on both ranks.
  const model::ParamUnit* unit = params.unit(model::UnitKind::embedding);
  MT_CHECK(unit, "this rank shares a token table, but has none");
  // edge: the gradients' sums over samples -> their sum over the two ranks
  links_.stream->wait(links_.compute->record());
  for (const model::OwnedRange& range : unit->owned)
    if (range.grad) links_.table.all_reduce(range.grad, comm::Reduce::sum, *links_.stream);
  links_.compute->wait(links_.stream->record());
}

}  // namespace mtrain::pipeline
