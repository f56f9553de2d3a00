#include "train/trainer.h"

#include <cmath>

#include "recipe/layout.h"
#include "train/diagnose.h"
#include "train/model_setup.h"

namespace mtrain {

namespace {
int64_t unmasked(const std::vector<Batch>& batches) {
  int64_t n = 0;
  for (const Batch& b : batches) n += b.unmasked;
  return n;
}

// Parameters have memory before anything else looks at them.
std::unique_ptr<DataParallel> materialize(ParamStore& params, World& world, Device& device,
                                          const Recipe& r) {
  Stream& on = device.stream("compute");
  const DataGroups groups = data_groups(world, device, r);
  const bool alone = groups.all.size() == 0;
  const DataParallelOptions options = data_parallel_options(r, world.size());
  params.materialize(on, compute_dtype(r.mixed_precision), true,
                     alone ? Sharding{} : sharding_of(groups, options));
  if (alone) return std::make_unique<SingleRank>();
  return data_parallel(params, groups, options);
}
}  // namespace

Trainer::Trainer(Device& device, const Recipe& r, const GptConfig& config,
                 std::shared_ptr<const Dataset> data, World world)
    : device_(device),
      compute_(device.stream("compute")),
      recipe_(r),
      world_(std::move(world)),
      control_(world_, device),
      parts_(model_parts(world_, device, r)),
      gpt_(compute_, params_, config, sample_length(r),
           recompute_policy(r.recompute, config.layers), parts_),
      data_parallel_(materialize(params_, world_, device, r)),
      share_(sequence_share(world_, r)),
      adamw_(compute_, params_, r.optimizer),
      schedule_(r.optimizer, r.lr_scheduler, r.train.steps),
      loader_(std::move(data), {.global_batch = r.train.global_batch_size,
                                .micro_batch = r.train.micro_batch_size,
                                .dp_rank = data_parallel_->rank(),
                                .dp_size = data_parallel_->size()}) {
  change_weights([&] { params_.initialize(compute_, uint64_t(r.train.seed)); });
}

void Trainer::change_weights(const std::function<void()>& write) {
  data_parallel_->before_update();
  write();
  for (ParamUnit* unit : params_.units()) data_parallel_->updated(*unit);
}

StepStats Trainer::step() {
  const int64_t number = step_ + 1;
  const float lr = schedule_.at(number);
  const auto batches = global_batch(number);
  const int64_t counted = data_parallel_->sum_on_host({unmasked(batches)})[0];
  params_.zero_grads(compute_);
  const Tensor loss = run_micro_batches(batches, number, counted ? 1.0f / float(counted) : 0.0f);
  data_parallel_->finish_grads();
  parts_.tensor->finish_grads(params_);
  data_parallel_->sum(loss);
  const auto sum_parts = [this](const Tensor& squares) {
    data_parallel_->sum_parts(squares);
    parts_.tensor->sum(squares);
  };
  const ops::Clip clip =
      clip_grad_norm(compute_, params_, sum_parts, float(recipe_.optimizer.clip_grad), loss);
  // Leaves everything as it is where the norm or the loss is not finite.
  adamw_.step(compute_, number, lr, clip.scale,
              [this](ParamUnit& unit) { data_parallel_->updated(unit); });
  const double total = loss.to_host<double>(compute_)[0];
  const float norm = clip.norm.to_host<float>(compute_)[0];
  if (recipe_.debug.check_nan && !(std::isfinite(total) && std::isfinite(norm)))
    Diagnosis(*this).explain(batches, number);
  step_ = number;
  return {.step = number,
          .loss = total / double(std::max<int64_t>(counted, 1)),
          .grad_norm = norm,
          .lr = lr,
          .tokens = recipe_.train.global_batch_size * sample_length(recipe_)};
}

std::vector<Batch> Trainer::global_batch(int64_t step) {
  std::vector<Batch> batches;
  for (int64_t k = 0; k < loader_.micro_batches(); ++k)
    batches.push_back(share_of(loader_.micro_batch(step - 1, k)));
  return batches;
}

Batch Trainer::share_of(Batch whole) const {
  return share_.ranks == 1 ? std::move(whole) : share_of_batch(whole, share_.rank, share_.ranks);
}

// Forward and backward of every micro-batch; gradients add up in the parameters' main gradients.
// Returns the summed loss.
Tensor Trainer::run_micro_batches(const std::vector<Batch>& batches, int64_t step, float grad_scale,
                                  bool finishes_step) {
  const Tensor loss = Tensor::from_host<double>(compute_, {1}, {0.0});
  WgradQueue wgrad([this](Parameter& p) { data_parallel_->grad_ready(p); });
  for (size_t k = 0; k < batches.size(); ++k) {
    Stash stash;
    const MicroBatch batch = upload(batches[k]);
    const int64_t in_global_batch = int64_t(k) * data_parallel_->size() + data_parallel_->rank();
    Step s{compute_, wgrad,           stash, batch.seq,           uint64_t(recipe_.train.seed),
           step,     in_global_batch, true,  data_parallel_.get()};
    data_parallel_->begin_micro_batch(finishes_step && k + 1 == batches.size());
    gpt_.forward(s, batch, {batch.label_T, loss, grad_scale * data_parallel_->grad_factor()});
    gpt_.backward(s, batch);
  }
  return loss;
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
  WgradQueue wgrad;
  for (int64_t i = 0; i < loader.batches(); ++i) {
    Stash stash;
    const Batch b = share_of(loader.batch(i));
    counted += b.unmasked;
    const MicroBatch batch = upload(b);
    Step s{compute_, wgrad, stash, batch.seq, 0, step_, i, false, data_parallel_.get()};
    gpt_.forward(s, batch, {batch.label_T, loss});
  }
  data_parallel_->sum(loss);
  counted = data_parallel_->sum_on_host({counted})[0];
  return loss.to_host<double>(compute_)[0] / double(std::max<int64_t>(counted, 1));
}

bool Trainer::any_rank(bool wants) { return control_.any(wants); }

}  // namespace mtrain
