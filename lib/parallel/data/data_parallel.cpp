#include "parallel/data/data_parallel.h"

#include <algorithm>

#include "tensor/host_copy.h"

namespace mtrain::parallel {

namespace {

class MultiRankDataParallel : public model::DataParallel {
 public:
  MultiRankDataParallel(model::ParamStore& params, const DataGroups& groups,
                        const plan::DataParallelOptions& o, model::Quantizer* quantizer)
      : groups_(groups),
        average_(o.reduce.average),
        owns_part_(o.shards != plan::ShardLevel::nothing) {
    if (o.shards == plan::ShardLevel::nothing)
      values_ = replicated_params();
    else if (o.shards == plan::ShardLevel::parameters)
      values_ = sharded_params(params, groups_, o.gather, quantizer);
    else
      values_ = gathered_params(params, groups_, o.gather_updated, quantizer);
    if (o.shards == plan::ShardLevel::gradients || o.shards == plan::ShardLevel::parameters)
      grads_ = sharded_grads(params, groups_, o.reduce, o.defer_reduce, o.overlap_grad_reduce);
    else
      grads_ = bucketed_grads(params, groups_, o.reduce, o.bucket_size, o.overlap_grad_reduce);
  }

  int rank() const override { return groups_.rank; }
  int size() const override { return groups_.size; }

  void before_forward(model::ParamUnit& u) override { values_->before_forward(u); }
  void after_forward(model::ParamUnit& u) override { values_->after_forward(u); }
  void before_recompute(model::ParamUnit& u, model::ParamUnit* next) override {
    values_->before_recompute(u, next);
  }
  void before_backward(model::ParamUnit& u) override {
    values_->before_backward(u);
    grads_->before_backward(u);
  }
  void after_backward(model::ParamUnit& u) override { values_->after_backward(u); }

  void before_grads(model::ParamUnit& u) override { grads_->before_grads(u); }
  void pin(model::ParamUnit& u) override { values_->pin(u); }
  void unpin(model::ParamUnit& u) override { values_->unpin(u); }

  // Gradients have no state here: micro-batches that reduce some are not captured.
  model::HookState hook_state() const override { return values_->hook_state(); }
  void set_hook_state(const model::HookState& state, const Event& done) override {
    values_->set_hook_state(state, done);
  }

  void begin_step(int64_t micro_batches) override { grads_->begin_step(micro_batches); }
  void skip_stages(const std::set<int64_t>& stages) override { grads_->skip_stages(stages); }
  void grad_ready(model::Parameter& p) override { grads_->ready(p); }
  float grad_factor() const override { return average_ ? float(groups_.dense.all.size()) : 1; }

  void finish_grads() override {
    grads_->finish();
    compute().wait(grad_stream().record());  // edge: last reduction -> norm and optimizer
    values_->before_update();
  }

  void before_update() override { values_->before_update(); }
  void updated(model::ParamUnit& u) override { values_->updated(u); }

  void sum(const Tensor& values) override {
    reduce_over(groups_.dense.all, values, comm::Reduce::sum);
  }
  void max(const Tensor& values, model::UnitKind of) override {
    reduce_over(groups_.of(of).all, values, comm::Reduce::max);
  }
  bool first_copy(model::UnitKind of) const override { return groups_.of(of).all.rank() == 0; }
  // The ranks of dense.shards (dp_shard_cp) together have all experts, too. If tp ranks have
  // undivided experts, these are spread over tp as well; the caller's sum over tp adds them.
  void sum_parts(const Tensor& values) override {
    if (owns_part_ || groups_.experts.all)
      reduce_over(groups_.dense.shards, values, comm::Reduce::sum);
  }
  std::vector<int64_t> sum_on_host(std::vector<int64_t> values) override {
    const auto n = int64_t(values.size());
    const Tensor t = Tensor::from_host(grad_stream(), {n}, std::move(values));
    groups_.dense.all.all_reduce(t, comm::Reduce::sum, grad_stream());
    // The host waits below and enqueues nothing, so compute is idle. With this edge that time
    // counts as exposed communication.
    compute().wait(grad_stream().record());
    return t.to_host<int64_t>(grad_stream());
  }
  // Compute does not wait for this sum, which comes after the reductions that are enqueued already.
  void begin_sum(std::vector<int64_t> values) override {
    const auto n = int64_t(values.size());
    const Tensor t = Tensor::from_host(grad_stream(), {n}, std::move(values));
    groups_.dense.all.all_reduce(t, comm::Reduce::sum, grad_stream());
    sums_.begin({t});
  }
  std::vector<int64_t> end_sum() override {
    sums_.wait();
    return sums_.values<int64_t>(0);
  }

  Tensor gather_unit(const model::ParamUnit& unit, const Tensor& own) override {
    if (unit.sharding.ranks == 1) return own;
    Stream& stream = *groups_.param_stream;
    const Tensor all =
        Tensor::empty(stream, {unit.count}, own.dtype(), device::MemoryCategory::buffers);
    stream.wait(compute().record());  // edge: the last write of the parts -> their gather
    for (const model::Piece& piece : unit.pieces)
      groups_.of(unit).gather.all_gather(unit.local_shard(own, piece), unit.full(all, piece),
                                         stream);
    compute().wait(stream.record());
    return all;
  }

 private:
  Stream& compute() const { return *groups_.compute; }
  Stream& grad_stream() const { return *groups_.grad_stream; }

  void reduce_over(const Group& group, const Tensor& values, comm::Reduce how) const {
    grad_stream().wait(compute().record());  // edge: values -> their sum or maximum
    group.all_reduce(values, how, grad_stream());
    compute().wait(grad_stream().record());
  }

  const DataGroups groups_;
  tensor::HostCopy sums_{grad_stream()};  // of the last begin_sum()
  const bool average_, owns_part_;
  std::unique_ptr<ParamSync> values_;
  std::unique_ptr<GradSync> grads_;
};

}  // namespace

model::Sharding sharding_of(const DataGroups& groups, const model::ParamUnit& unit,
                            const plan::DataParallelOptions& o) {
  const UnitGroups& of_unit = groups.of(unit);
  model::Sharding s;
  s.piece = o.bucket_size;
  if (o.shards == plan::ShardLevel::nothing) {
    // If experts are distributed over ranks, sum_parts() sums over dp_shard_cp. A unit that several
    // of these ranks have must count once: on the first of them.
    s.in_norm = !groups.experts.all || of_unit.shards.rank() == 0;
    return s;
  }
  if (of_unit.shards.size() == 1) return s;  // experts that only one rank of a replica has
  s.ranks = of_unit.shards.size();
  s.rank = of_unit.shards.rank();
  s.grads = o.shards == plan::ShardLevel::gradients || o.shards == plan::ShardLevel::parameters;
  s.values = o.shards == plan::ShardLevel::parameters;
  if (std::ranges::any_of(unit.params, &model::Parameter::quantized)) s.quantized = o.gather_as;
  return s;
}

std::unique_ptr<model::DataParallel> data_parallel(model::ParamStore& params,
                                                   const DataGroups& groups,
                                                   const plan::DataParallelOptions& options,
                                                   model::Quantizer* quantizer) {
  return std::make_unique<MultiRankDataParallel>(params, groups, options, quantizer);
}

}  // namespace mtrain::parallel
