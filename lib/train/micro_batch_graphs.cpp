#include "train/micro_batch_graphs.h"

#include "base/error.h"
#include "device/device.h"
#include "model/experts/experts_of_step.h"
#include "ops/blocks.h"

namespace mtrain::train {

namespace {

// The number of runs without a graph before a capture. In these runs libraries choose their
// algorithms, and the memory pool grows to its final size.
constexpr int64_t kWarmUp = 1;

void copy(Stream& stream, const Tensor& from_T, const Tensor& to_T) {
  if (!from_T || from_T.data() == to_T.data()) return;  // absent, or this micro-batch was captured
  const int64_t T = from_T.count();
  ops::copy_blocks(
      stream, from_T.view({1, T}), to_T.view({1, T}),
      {{.from_row = 0, .from_column = 0, .to_row = 0, .to_column = 0, .rows = 1, .columns = T}});
}

}  // namespace

// Dropout needs a key for each of a layer's two segments, and one for the embedding. One is spare.
MicroBatchGraphs::MicroBatchGraphs(Stream& compute, model::ParamStore& params,
                                   pipeline::Pipeline& pipeline, model::DataParallel& data_parallel,
                                   const plan::CudaGraphs& plan, int64_t layers)
    : compute_(compute),
      params_(params),
      pipeline_(pipeline),
      data_parallel_(data_parallel),
      plan_(plan),
      pool_(compute.device().allocator().make_pool()),
      values_(compute, 2 * layers + 2) {}

void MicroBatchGraphs::turn_off(std::string why) {
  graphs_.clear();
  pool_.reset();  // all allocations can then use its memory
  plan_ = {.on = false, .why = std::move(why)};
}

std::unique_ptr<device::Allocator::Open> MicroBatchGraphs::share_memory() const {
  if (!plan_.on) return nullptr;
  return std::make_unique<device::Allocator::Open>(compute_.device().allocator(), *pool_);
}

void MicroBatchGraphs::run(const pipeline::MicroBatches& work, bool steady) {
  for (size_t k = 0; k < work.batches.size(); ++k) {
    const std::vector<model::MicroBatch> batch{work.batches[k]};
    const pipeline::MicroBatches one{.batches = batch,
                                     .numbers = {work.numbers[k]},
                                     .seed = work.seed,
                                     .step = work.step,
                                     .loss = work.loss,
                                     .grad_scale = work.grad_scale,
                                     .on_ready = work.on_ready,
                                     .hooks = work.hooks,
                                     .experts = work.experts};
    bool done = false;
    if (steady && possible(batch[0], int64_t(k))) {
      const auto shared = share_memory();
      done = run_as_graph(one);
    }
    if (done) continue;
    const auto shared = share_memory();  // null if the capture has just failed
    pipeline_.run_one(one);
  }
}

bool MicroBatchGraphs::possible(const model::MicroBatch& batch, int64_t k) const {
  return plan_.on && !held_ && k >= plan_.first && k < plan_.end && batch.seq.documents.empty() &&
         !compute_.device().launch_check();
}

bool MicroBatchGraphs::run_as_graph(const pipeline::MicroBatches& one) {
  const model::MicroBatch& batch = one.batches[0];
  const bool has_fraction = one.experts && one.experts->fraction_LE;
  Key key{{batch.seq.B, batch.seq.S, bool(batch.seq.valid_T), has_fraction}, fresh()};
  for (const model::ParamUnit* unit : params_.units())
    key.first.push_back(int64_t(reinterpret_cast<uintptr_t>(unit->grad.data())));
  const std::vector<int64_t> hooks = data_parallel_.hook_state().key;
  key.first.insert(key.first.end(), hooks.begin(), hooks.end());
  if (!graphs_.contains(key) && runs_[key]++ >= kWarmUp) capture(one, key);
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) return false;
  Captured& c = found->second;
  MT_CHECK(compute_.device().allocator().in_use(*pool_) == 0,
           "memory that a graph writes to is in use");
  copy(compute_, batch.input_T, c.inputs.input_T);
  copy(compute_, batch.label_T, c.inputs.label_T);
  copy(compute_, batch.seq.position_T, c.inputs.seq.position_T);
  copy(compute_, batch.seq.valid_T, c.inputs.seq.valid_T);
  values_.set({.grad_scale = one.grad_scale,
               .router_grad_scale = one.experts ? one.experts->loss_grad : 0,
               .seed = one.seed,
               .step = one.step,
               .micro_batch = one.numbers[0]});
  c.graph.replay();
  ++replays_;
  set_fresh(c.fresh);
  if (c.hooks.data) data_parallel_.set_hook_state(c.hooks, compute_.record());
  for (model::Parameter* p : c.ready) one.on_ready(*p);
  return true;
}

// A capture runs nothing and does not call on_ready(). A micro-batch whose capture fails can
// therefore still run without a graph. The graph reads its inputs from this micro-batch's tensors.
void MicroBatchGraphs::capture(const pipeline::MicroBatches& one, const Key& key) {
  const device::Allocator& memory = compute_.device().allocator();
  std::vector<model::Parameter*> ready;
  const model::HookState before = data_parallel_.hook_state();
  pipeline::MicroBatches recorded = one;
  recorded.on_ready = [&](model::Parameter& p) { ready.push_back(&p); };
  recorded.graph_inputs = &values_;
  try {
    if (const int64_t kept = memory.in_use(*pool_))
      throw RunError(fmt::format("{} bytes of the micro-batch before it are still in use", kept));
    device::Capture capture(compute_, pool_);
    pipeline_.run_one(recorded);
    device::Graph graph = capture.finish("micro_batch");
    if (const int64_t kept = memory.in_use(*pool_))
      throw RunError(fmt::format("{} bytes are still in use after it", kept));
    graphs_.emplace(key, Captured{std::move(graph), one.batches[0], std::move(ready), fresh(),
                                  data_parallel_.hook_state()});
  } catch (const RunError& e) {
    failure_ = fmt::format("a micro-batch could not be captured as a graph: {}", e.message());
    turn_off(failure_);
  }
  set_fresh(key.second);
  if (before.data) data_parallel_.set_hook_state(before, {});
}

std::vector<bool> MicroBatchGraphs::fresh() {
  std::vector<bool> all;
  for (const model::Parameter* p : params_.params()) all.push_back(p->fresh);
  return all;
}

void MicroBatchGraphs::set_fresh(const std::vector<bool>& fresh) {
  const auto params = params_.params();
  for (size_t i = 0; i < params.size(); ++i) params[i]->fresh = fresh[i];
}

}  // namespace mtrain::train
