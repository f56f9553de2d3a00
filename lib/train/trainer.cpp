#include "train/trainer.h"

#include <cmath>

#include "parallel/ddp.h"
#include "recipe/overlap.h"
#include "train/diagnose.h"
#include "train/model_setup.h"

namespace mtrain {

namespace {
int64_t unmasked(const std::vector<Batch>& batches) {
  int64_t n = 0;
  for (const Batch& b : batches) n += b.unmasked;
  return n;
}

// Parameters exist, with memory and values, before the optimizer looks at them.
ParamStore& ready(ParamStore& params, Stream& on, const Recipe& r) {
  params.materialize(on, compute_dtype(r.mixed_precision), true);
  params.initialize(on, uint64_t(r.train.seed));
  return params;
}

std::unique_ptr<DataParallel> make_data_parallel(World& world, ParamStore& params, Stream& compute,
                                                 const Recipe& r) {
  if (world.size() == 1) return single_rank();
  const Overlap overlap = resolve_overlap(r, layout_of(r, world.size()));
  return replicated_data_parallel(
      params, world.everyone(),
      {.overlap = overlap.overlap_grad_reduce, .bucket_size = overlap.bucket_size}, compute,
      compute.device().stream("dp"));
}
}  // namespace

Trainer::Trainer(Device& device, const Recipe& r, const GptConfig& config,
                 std::shared_ptr<const Dataset> data, World world)
    : device_(device),
      compute_(device.stream("compute")),
      recipe_(r),
      world_(std::move(world)),
      gpt_(compute_, params_, config, r.dataset.seq_length,
           recompute_policy(r.recompute, config.layers)),
      adamw_(compute_, ready(params_, compute_, r), r.optimizer),
      data_parallel_(make_data_parallel(world_, params_, compute_, r)),
      schedule_(r.optimizer, r.lr_scheduler, r.train.steps),
      loader_(std::move(data), {.global_batch = r.train.global_batch_size,
                                .micro_batch = r.train.micro_batch_size,
                                .dp_rank = data_parallel_->rank(),
                                .dp_size = data_parallel_->size()}) {}

StepStats Trainer::step() {
  const int64_t number = step_ + 1;
  const float lr = schedule_.at(number);
  const auto batches = global_batch(number);
  const int64_t counted = data_parallel_->sum_on_host({unmasked(batches)})[0];
  params_.zero_grads(compute_);
  const Tensor loss = run_micro_batches(batches, number, counted ? 1.0f / float(counted) : 0.0f);
  data_parallel_->finish_grads();
  data_parallel_->sum(loss);
  const ops::Clip clip =
      clip_grad_norm(compute_, params_, float(recipe_.optimizer.clip_grad), loss);
  adamw_.step(compute_, number, lr,
              clip.scale);  // leaves everything as it is where the norm or the loss is not finite
  const double total = loss.to_host<double>(compute_)[0];
  const float norm = clip.norm.to_host<float>(compute_)[0];
  if (recipe_.debug.check_nan && !(std::isfinite(total) && std::isfinite(norm)))
    Diagnosis(*this).explain(batches, number);
  step_ = number;
  return {.step = number,
          .loss = total / double(std::max<int64_t>(counted, 1)),
          .grad_norm = norm,
          .lr = lr,
          .tokens = recipe_.train.global_batch_size * recipe_.dataset.seq_length};
}

std::vector<Batch> Trainer::global_batch(int64_t step) {
  std::vector<Batch> batches;
  for (int64_t k = 0; k < loader_.micro_batches(); ++k)
    batches.push_back(loader_.micro_batch(step - 1, k));
  return batches;
}

// Forward and backward of every micro-batch; gradients add up in the parameters' main gradients.
// Returns the summed loss.
Tensor Trainer::run_micro_batches(const std::vector<Batch>& batches, int64_t step, float grad_scale,
                                  bool reduce) {
  const Tensor loss = Tensor::from_host<double>(compute_, {1}, {0.0});
  WgradQueue wgrad([this](Parameter& p) { data_parallel_->grad_ready(p); });
  for (size_t k = 0; k < batches.size(); ++k) {
    Stash stash;
    const MicroBatch batch = upload(batches[k]);
    const int64_t in_global_batch = int64_t(k) * data_parallel_->size() + data_parallel_->rank();
    Step s{compute_, wgrad,           stash, batch.seq, uint64_t(recipe_.train.seed),
           step,     in_global_batch, true};
    // Before forward, in which the head's gradients come.
    data_parallel_->begin_backward(reduce && k + 1 == batches.size());
    gpt_.forward(s, batch, {batch.label_T, loss, grad_scale});
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
  return m;
}

double Trainer::evaluate(const ValidationLoader& loader) {
  const Tensor loss = Tensor::from_host<double>(compute_, {1}, {0.0});
  int64_t counted = 0;
  WgradQueue wgrad;
  for (int64_t i = 0; i < loader.batches(); ++i) {
    Stash stash;
    const Batch b = loader.batch(i);
    counted += b.unmasked;
    const MicroBatch batch = upload(b);
    Step s{compute_, wgrad, stash, batch.seq, 0, step_, i, false};
    gpt_.forward(s, batch, {batch.label_T, loss});
  }
  data_parallel_->sum(loss);
  counted = data_parallel_->sum_on_host({counted})[0];
  return loss.to_host<double>(compute_)[0] / double(std::max<int64_t>(counted, 1));
}

bool Trainer::any_rank(bool wants) { return data_parallel_->sum_on_host({wants})[0] > 0; }

}  // namespace mtrain
