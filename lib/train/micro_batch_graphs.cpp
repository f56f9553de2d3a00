#include "train/micro_batch_graphs.h"

#include <utility>

#include "base/error.h"
#include "device/device.h"
#include "model/experts/experts_of_step.h"
#include "ops/blocks.h"

namespace mtrain::train {

namespace {

// The number of runs without a graph before a capture. In these runs libraries choose their
// algorithms, and the memory pool grows to its final size.
constexpr int64_t kWarmUp = 1;
// Each graph keeps memory of the device. Steps differ in which of their micro-batches have padding,
// and a step of many micro-batches could be of very many kinds.
constexpr size_t kMostGraphs = 16;

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
                                   optim::Optimizer& optimizer, const plan::CudaGraphs& plan,
                                   int64_t layers)
    : compute_(compute),
      params_(params),
      pipeline_(pipeline),
      data_parallel_(data_parallel),
      plan_(plan),
      max_dropouts_(2 * layers + 2),
      pool_(compute.device().allocator().make_pool()) {
  if (plan_.full_step) update_ = std::make_unique<UpdateGraph>(compute, optimizer, pool_);
}

void MicroBatchGraphs::turn_off(std::string why) {
  graphs_.clear();
  update_.reset();
  pool_.reset();  // all allocations can then use its memory
  plan_ = {.on = false, .why = std::move(why)};
}

void MicroBatchGraphs::turn_to_micro_batches(const std::string& why) {
  graphs_.clear();
  runs_.clear();
  full_ = false;
  update_.reset();
  plan_.full_step = false;
  plan_.why = fmt::format("every micro-batch; not a whole step: {}", why);
}

void MicroBatchGraphs::note_failure(const std::string& failure) {
  failure_ += failure_.empty() ? failure : "; " + failure;
}

std::unique_ptr<device::Allocator::Open> MicroBatchGraphs::share_memory() const {
  if (!plan_.on) return nullptr;
  return std::make_unique<device::Allocator::Open>(compute_.device().allocator(), *pool_);
}

void MicroBatchGraphs::run(const pipeline::MicroBatches& work, const std::function<void()>& begin,
                           bool steady) {
  const size_t all = work.batches.size(), together = plan_.full_step ? all : 1;
  const bool begins = !plan_.full_step;
  if (begins) begin();
  while (values_.size() < together) values_.emplace_back(compute_, max_dropouts_);
  for (size_t first = 0; first < all; first += together) {
    const Part part{work, first, together, begins ? nullptr : &begin};
    bool done = false;
    if (steady && possible(part)) {
      const auto shared = share_memory();
      done = run_as_graph(part);
    }
    if (done) continue;
    if (part.begin) begin();
    for (size_t k = first; k < first + together; ++k) {
      const auto shared = share_memory();  // null if the capture has just failed
      run_one(work, k, nullptr, work.on_ready);
    }
  }
}

ops::Clip MicroBatchGraphs::run_update(const UpdateGraph::Update& update,
                                       const UpdateGraph::Enqueue& enqueue) {
  if (!update_ || held_ || compute_.device().launch_check()) return enqueue(update.limits);
  bool ready = false;
  try {
    ready = update_->prepare(update, enqueue);
  } catch (const RunError& e) {  // the micro-batches' graph stays
    const std::string why =
        fmt::format("an update could not be captured as a graph: {}", e.message());
    note_failure(why);
    plan_.why += "; " + why;
    update_.reset();
  }
  return ready ? update_->replay() : enqueue(update.limits);
}

void MicroBatchGraphs::run_one(const pipeline::MicroBatches& work, size_t k,
                               model::GraphInputs* inputs,
                               const model::WgradQueue::OnReady& on_ready) {
  const std::vector<model::MicroBatch> batch{work.batches[k]};
  pipeline_.run_one({.batches = batch,
                     .numbers = {work.numbers[k]},
                     .seed = work.seed,
                     .step = work.step,
                     .loss = work.loss,
                     .grad_scale = work.grad_scale,
                     .on_ready = on_ready,
                     .hooks = work.hooks,
                     .graph_inputs = inputs,
                     .experts = work.experts});
}

bool MicroBatchGraphs::possible(const Part& part) const {
  const auto first = int64_t(part.first), end = first + int64_t(part.count);
  bool packed = false;
  for (size_t k = part.first; k < part.first + part.count; ++k)
    packed = packed || !part.work.batches[k].seq.documents.empty();
  return plan_.on && !held_ && first >= plan_.first && end <= plan_.end && !packed &&
         !compute_.device().launch_check();
}

MicroBatchGraphs::Key MicroBatchGraphs::key_of(const Part& part) {
  const model::ExpertsOfStep* experts = part.work.experts;
  Key key{{int64_t(part.count), experts && experts->fraction_LE},
          part.begin ? std::vector<bool>() : fresh()};
  for (size_t k = part.first; k < part.first + part.count; ++k) {
    const model::SequenceInfo& seq = part.work.batches[k].seq;
    key.first.insert(key.first.end(), {seq.B, seq.S, bool(seq.valid_T)});
  }
  for (const model::ParamUnit* unit : params_.units())
    key.first.push_back(int64_t(reinterpret_cast<uintptr_t>(unit->grad.data())));
  const std::vector<int64_t> hooks = data_parallel_.hook_state().key;
  key.first.insert(key.first.end(), hooks.begin(), hooks.end());
  return key;
}

bool MicroBatchGraphs::run_as_graph(const Part& part) {
  const Key key = key_of(part);
  if (!graphs_.contains(key) && runs_[key]++ >= kWarmUp && has_room()) capture(part, key);
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) return false;
  Captured& c = found->second;
  MT_CHECK(compute_.device().allocator().in_use(*pool_) == 0,
           "memory that a graph writes to is in use");
  const pipeline::MicroBatches& work = part.work;
  for (size_t i = 0; i < part.count; ++i) {
    const model::MicroBatch &from = work.batches[part.first + i], &to = c.inputs[i];
    copy(compute_, from.input_T, to.input_T);
    copy(compute_, from.label_T, to.label_T);
    copy(compute_, from.seq.position_T, to.seq.position_T);
    copy(compute_, from.seq.valid_T, to.seq.valid_T);
    values_[i].set({.grad_scale = work.grad_scale,
                    .router_grad_scale = work.experts ? work.experts->loss_grad : 0,
                    .seed = work.seed,
                    .step = work.step,
                    .micro_batch = work.numbers[part.first + i]});
  }
  c.graph.replay();
  ++replays_;
  set_fresh(c.fresh);
  if (c.hooks.data) data_parallel_.set_hook_state(c.hooks, compute_.record());
  for (model::Parameter* p : c.ready) work.on_ready(*p);
  return true;
}

bool MicroBatchGraphs::has_room() {
  if (graphs_.size() < kMostGraphs) return true;
  if (!std::exchange(full_, true))
    note_failure(fmt::format(
        "there are graphs of {} kinds of work: further kinds run as single launches", kMostGraphs));
  return false;
}

// A capture runs nothing and does not call on_ready(). Micro-batches whose capture fails can
// therefore still run without a graph. After the failed capture of a step, single micro-batches are
// tried. The graph reads its inputs from these micro-batches'
// tensors.
void MicroBatchGraphs::capture(const Part& part, const Key& key) {
  const device::Allocator& memory = compute_.device().allocator();
  std::vector<model::Parameter*> ready;
  const std::vector<bool> fresh_before = fresh();
  const model::HookState before = data_parallel_.hook_state();
  const auto on_ready = [&](model::Parameter& p) { ready.push_back(&p); };
  try {
    if (const int64_t kept = memory.in_use(*pool_))
      throw RunError(fmt::format("{} bytes of the micro-batch before it are still in use", kept));
    device::Capture capture(compute_, pool_);
    if (part.begin) (*part.begin)();
    for (size_t i = 0; i < part.count; ++i)
      run_one(part.work, part.first + i, &values_[i], on_ready);
    device::Graph graph = capture.finish(part.begin ? "graph_micro_batches" : "micro_batch");
    if (const int64_t kept = memory.in_use(*pool_))
      throw RunError(fmt::format("{} bytes are still in use after it", kept));
    const auto first = part.work.batches.begin() + int64_t(part.first);
    graphs_.emplace(key, Captured{std::move(graph),
                                  {first, first + int64_t(part.count)},
                                  std::move(ready),
                                  fresh(),
                                  data_parallel_.hook_state()});
  } catch (const RunError& e) {
    const std::string why =
        fmt::format("{} could not be captured as a graph: {}",
                    part.begin ? "the micro-batches of a step" : "a micro-batch", e.message());
    note_failure(why);
    part.begin ? turn_to_micro_batches(why) : turn_off(why);
  }
  set_fresh(fresh_before);
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
