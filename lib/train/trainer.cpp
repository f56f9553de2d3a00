#include "train/trainer.h"

#include <cmath>

#include "ops/ops.h"
#include "train/diagnose.h"
#include "train/model_setup.h"
#include "train/pipeline_setup.h"

namespace mtrain {

namespace {
int64_t unmasked(const std::vector<Batch>& batches) {
  int64_t n = 0;
  for (const Batch& b : batches) n += b.unmasked;
  return n;
}

// Length of the document that attention gives a token, as a mean.
int64_t attended(const std::vector<Batch>& batches, int64_t sample_length) {
  int64_t tokens = 0, pairs = 0;
  for (const Batch& b : batches)
    for (const int64_t length : b.documents) tokens += length, pairs += length * length;
  return tokens ? pairs / tokens : sample_length;
}

std::unique_ptr<Pipeline> make_pipeline(Stream& on, ParamStore& params, World& world,
                                        Device& device, const Recipe& r, const RunPlan& plan,
                                        const GptConfig& config, const ModelParts& parts) {
  return std::make_unique<Pipeline>(
      pipeline_links(world, device, plan, config.tied_embeddings),
      pipeline_stages(on, params, r, config, plan, world.rank(), parts), plan.schedule,
      plan.pipeline);
}

// Parameters have memory before anything else looks at them.
std::unique_ptr<DataParallel> materialize(ParamStore& params, World& world, Device& device,
                                          const RunPlan& plan, bool master_weights,
                                          const Gpt& first_stage) {
  Stream& on = device.stream(StreamKind::compute);
  const DataGroups groups = data_groups(world, device, plan);
  const DataParallelOptions& options = plan.data_parallel;
  const bool alone = groups.all.size() == 0;
  params.materialize(on, plan.compute_dtype, true,
                     alone ? Sharding{} : sharding_of(groups, options), master_weights);
  if (alone) return std::make_unique<SingleRank>();
  return data_parallel(params, groups, options, first_stage.units_before_head());
}

// Null where the plan rules them out.
std::unique_ptr<MicroBatchGraphs> make_graphs(Stream& compute, ParamStore& params,
                                              Pipeline& pipeline, const CudaGraphs& plan,
                                              int64_t layers) {
  if (!plan.on) return nullptr;
  return std::make_unique<MicroBatchGraphs>(compute, params, pipeline, plan, layers);
}
}  // namespace

// In braces: the number of ranks is read before `world` moves on.
Trainer::Trainer(Device& device, const Recipe& r, const GptConfig& config,
                 std::shared_ptr<const Dataset> data, World world)
    : Trainer{device,          r, make_plan(r, world.size(), config.vocab), config, std::move(data),
              std::move(world)} {}

Trainer::Trainer(Device& device, const Recipe& r, RunPlan plan, const GptConfig& config,
                 std::shared_ptr<const Dataset> data, World world)
    : device_(device),
      compute_(device.stream(StreamKind::compute)),
      recipe_(r),
      plan_(std::move(plan)),
      world_(std::move(world)),
      control_(world_, device),
      parts_(model_parts(world_, device, r, plan_)),
      config_(config),
      pipeline_(make_pipeline(compute_, params_, world_, device, r, plan_, config, parts_)),
      data_parallel_(materialize(params_, world_, device, plan_, r.optimizer.master_weights,
                                 pipeline_->first_stage())),
      graphs_(make_graphs(compute_, params_, *pipeline_, plan_.graphs, r.model.num_layers)),
      share_(sequence_share(world_, r, plan_)),
      adamw_(compute_, params_, r.optimizer, uint64_t(r.train.seed)),
      schedule_(r.optimizer, r.lr_scheduler, r.train.steps),
      loader_(std::move(data), {.global_batch = r.train.global_batch_size,
                                .micro_batch = plan_.layout.micro_batch,
                                .dp_rank = data_parallel_->rank(),
                                .dp_size = data_parallel_->size()}) {
  if (parts_.fp8) parts_.fp8->materialize(compute_);
  change_weights([&] { params_.initialize(compute_, uint64_t(r.train.seed)); });
}

void Trainer::change_weights(const std::function<void()>& write) {
  data_parallel_->before_update();
  write();
  for (ParamUnit* unit : params_.units()) data_parallel_->updated(*unit);
  if (parts_.fp8) parts_.fp8->weights_changed();
}

StepStats Trainer::step() {
  const int64_t number = step_ + 1;
  const float lr = schedule_.at(number);
  const auto batches = global_batch(number);
  const int64_t counted = data_parallel_->sum_on_host({unmasked(batches)})[0];
  params_.zero_grads(compute_);
  const Tensor loss = run_micro_batches(batches, number, grad_scale(counted, batches.size()));
  data_parallel_->finish_grads();
  parts_.tensor->finish_grads(params_);
  pipeline_->finish_grads(params_);
  data_parallel_->sum(loss);
  pipeline_->sum(loss);  // the last stage has it
  const auto sum_parts = [this](const Tensor& squares) {
    data_parallel_->sum_parts(squares);
    parts_.tensor->sum(squares);
    pipeline_->sum(squares);
  };
  const ops::Clip clip =
      clip_grad_norm(compute_, params_, sum_parts, float(recipe_.optimizer.clip_grad), loss);
  // Leaves everything as it is where the norm or the loss is not finite.
  adamw_.step(compute_, number, lr, clip.scale,
              [this](ParamUnit& unit) { data_parallel_->updated(unit); });
  if (parts_.fp8)
    parts_.fp8->end_step(compute_, [this](const Tensor& amax) {
      data_parallel_->max(amax);
      parts_.tensor->max(amax);
    });
  const double total = loss.to_host<double>(compute_)[0];
  const float norm = clip.norm.to_host<float>(compute_)[0];
  if (recipe_.debug.check_nan && !(std::isfinite(total) && std::isfinite(norm)))
    Diagnosis(*this).explain(batches, number);
  step_ = number;
  return {.step = number,
          .loss = total / double(std::max<int64_t>(counted, 1)),
          .grad_norm = norm,
          .lr = lr,
          .tokens = recipe_.train.global_batch_size * plan_.sample_length,
          .attended = attended(batches, plan_.sample_length)};
}

// Gradient of the reported loss with respect to a token's.
float Trainer::grad_scale(int64_t counted, size_t micro_batches) const {
  const auto& d = recipe_.distributed;
  const bool again = d.pp_size > 1 && d.pipeline.scale_grads_in_schedule;
  return counted ? 1.0f / float(counted) / (again ? float(micro_batches) : 1.0f) : 0.0f;
}

std::vector<Batch> Trainer::global_batch(int64_t step) {
  std::vector<Batch> batches;
  for (int64_t k = 0; k < loader_.micro_batches(); ++k)
    batches.push_back(share_of(loader_.micro_batch(step - 1, k)));
  return batches;
}

Batch Trainer::share_of(Batch whole) const {
  return share_.ranks == 1 ? std::move(whole)
                           : share_of_batch(whole, share_.rank, share_.ranks, share_.multiple);
}

// Forward and backward of every micro-batch; gradients add up in the parameters' main gradients.
// Returns the summed loss of the stages on this rank.
Tensor Trainer::run_micro_batches(const std::vector<Batch>& batches, int64_t step, float grad_scale,
                                  bool finishes_step) {
  const auto uploaded = upload(batches);
  MicroBatches work{.batches = uploaded,
                    .seed = uint64_t(recipe_.train.seed),
                    .step = step,
                    .loss = zero_loss(),
                    .grad_scale = grad_scale * data_parallel_->grad_factor(),
                    .on_ready = [this](Parameter& p) { data_parallel_->grad_ready(p); },
                    .use = data_parallel_.get()};
  for (size_t k = 0; k < batches.size(); ++k)
    work.numbers.push_back(int64_t(k) * data_parallel_->size() + data_parallel_->rank());
  data_parallel_->begin_step(int64_t(batches.size()) + (finishes_step ? 0 : 1));
  if (!graphs_) {
    pipeline_->run(work);
    return work.loss;
  }
  // Where a step's first micro-batch is a graph, too, no other makes what is kept of the weights.
  const CudaGraphs& plan = graphs_->plan();
  if (parts_.fp8 && plan.on && plan.first == 0) parts_.fp8->prepare(compute_);
  graphs_->run(work, !parts_.fp8 || parts_.fp8->steady());
  return work.loss;
}

// The same memory in every step where graphs know its address.
Tensor Trainer::zero_loss() {
  if (!graphs_) return Tensor::from_host<double>(compute_, {1}, {0.0});
  if (!graphs_loss_)
    graphs_loss_ = Tensor::empty(compute_, {1}, DType::f64, MemoryCategory::buffers);
  ops::fill(compute_, graphs_loss_, 0);
  return graphs_loss_;
}

std::vector<MicroBatch> Trainer::upload(const std::vector<Batch>& batches) {
  std::vector<MicroBatch> uploaded;
  for (const Batch& b : batches) uploaded.push_back(upload(b));
  return uploaded;
}

MicroBatch Trainer::upload(const Batch& b) {
  const Shape T{b.B * b.S};
  MicroBatch m;
  m.input_T = Tensor::from_host(compute_, T, b.input);
  m.label_T = Tensor::from_host(compute_, T, b.label);
  m.seq = {.B = b.B, .S = b.S, .position_T = Tensor::from_host(compute_, T, b.position)};
  m.seq.documents = b.documents;
  if (!b.documents.empty()) {
    std::vector<int32_t> ends{0};
    for (const int64_t length : b.documents) ends.push_back(ends.back() + int32_t(length));
    m.seq.cu_seqlens = Tensor::from_host(compute_, {int64_t(ends.size())}, ends);
  }
  for (const PositionRun& run : b.runs) m.seq.runs.push_back({run.first, run.count});
  return m;
}

double Trainer::evaluate(const ValidationLoader& loader) {
  const Tensor loss = Tensor::from_host<double>(compute_, {1}, {0.0});
  int64_t counted = 0;
  // So many at once keep every stage busy.
  const int64_t together = 2 * pipeline_->links().size - 1;
  for (int64_t first = 0; first < loader.batches(); first += together) {
    std::vector<Batch> batches;
    std::vector<int64_t> numbers;
    for (int64_t i = first; i < std::min(first + together, loader.batches()); ++i) {
      batches.push_back(share_of(loader.batch(i)));
      numbers.push_back(i);
      counted += batches.back().unmasked;
    }
    const auto uploaded = upload(batches);
    const auto memory = graphs_ ? graphs_->share_memory() : nullptr;
    pipeline_->forward({.batches = uploaded,
                        .numbers = numbers,
                        .step = step_,
                        .training = false,
                        .loss = loss,
                        .use = data_parallel_.get()});
  }
  data_parallel_->sum(loss);
  pipeline_->sum(loss);
  counted = data_parallel_->sum_on_host({counted})[0];
  return loss.to_host<double>(compute_)[0] / double(std::max<int64_t>(counted, 1));
}

std::unique_ptr<ParamStore> Trainer::declare_whole() {
  auto whole = std::make_unique<ParamStore>();
  ModelParts parts = parts_;
  parts.fp8 = {};  // its scales are of this rank's linears
  Gpt(compute_, *whole, config_, plan_.sample_length, {}, parts);
  return whole;
}

bool Trainer::any_rank(bool wants) { return control_.any(wants); }

}  // namespace mtrain
