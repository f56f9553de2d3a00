#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <ranges>

#include "base/quant_format.h"
#include "model/param/write_weights.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "plan/checkpoint_cost.h"
#include "spec/tensors.h"
#include "tensor/upload.h"
#include "train/diagnose.h"

namespace mtrain::train {

namespace {

int64_t unmasked(const std::vector<data::Batch>& batches) {
  int64_t n = 0;
  for (const data::Batch& b : batches) n += b.unmasked;
  return n;
}

int64_t unmasked_at_depth(const std::vector<data::Batch>& batches, size_t k) {
  int64_t n = 0;
  for (const data::Batch& b : batches) n += b.further.at(k).unmasked;
  return n;
}

int64_t tokens_of(const std::vector<data::Batch>& batches) {
  int64_t n = 0;
  for (const data::Batch& b : batches) n += b.tokens();
  return n;
}

int64_t mean_document_length(const std::vector<data::Batch>& batches, int64_t sample_length) {
  int64_t tokens = 0, pairs = 0;
  for (const data::Batch& b : batches)
    for (const int64_t length : b.documents) tokens += length, pairs += length * length;
  return tokens ? pairs / tokens : sample_length;
}

}  // namespace

Trainer::Trainer(TrainerParts parts)
    : device_(parts.device),
      compute_(parts.compute),
      plan_(std::move(parts.plan)),
      world_(std::move(parts.world)),
      control_(parts.control),
      params_(std::move(parts.params)),
      impls_(std::move(parts.impls)),
      pipeline_(std::move(parts.pipeline)),
      data_parallel_(std::move(parts.data_parallel)),
      graphs_(std::move(parts.graphs)),
      share_(parallel::sequence_share(world_, plan_)),
      optimizer_(std::move(parts.optimizer)),
      schedule_(plan_.lr_schedule),
      scaler_(plan_.loss_scale),
      spikes_(plan_.train.spikes),
      loader_(std::move(parts.data), {.global_batch = plan_.train.global_batch_size,
                                      .micro_batch = plan_.layout.micro_batch,
                                      .dp_rank = data_parallel_->rank(),
                                      .dp_size = data_parallel_->size()}),
      routers_(std::move(parts.routers)),
      results_(compute_),
      last_step_(plan_.train.steps) {}

void Trainer::change_weights(const std::function<void()>& write) {
  const bool dropped = drop_begun();
  await_copies();
  model::write_weights(*params_, *data_parallel_, quantizer(), [&] {
    // Those of a dropped step are of the old weights.
    if (dropped && quantizer()) quantizer()->drop_maxima(compute_);
    write();
  });
}

StepStats Trainer::step(bool run_ahead) {
  if (begin_failure_) std::rethrow_exception(std::exchange(begin_failure_, {}));
  loads_.clear();
  const Begun now = begun_.number ? std::exchange(begun_, {}) : begin_step(step_ + 1);
  const int64_t batch = plan_.train.global_batch_size;
  // A step of the schedule is a number of samples: those of a batch. The quotient is exact if the
  // batch has never changed.
  const float lr = schedule_.at(double(updated_samples_ + batch) / double(batch));
  const double loss_scale = scaler_.scale();
  const double norm_median = spikes_.median();
  const Tensor norm_1 = update(now, lr).norm;
  const bool experts = plan_.model.experts();
  results_.begin({now.losses.flat(0, {1}), norm_1, experts ? experts_.sums_LS : Tensor(),
                  experts ? experts_.loss_2 : Tensor(), losses_of_depths(now.losses)});
  result_seen_ = {};
  if (run_ahead) begin_next(now.number + 1);
  // All work of this step is enqueued, and the host has time.
  prepare_batch(begun_.number ? begun_.number + 1 : now.number + 1);
  if (begun_.number) look_at_result();
  results_.wait();
  // Only a stream that has been synchronized has given all its timings to the sink.
  if (device_.timing_sink()) compute_.synchronize();
  const auto ended = result_seen_.value_or(std::chrono::steady_clock::now());
  const double total = results_.values<double>(0)[0];
  const float norm = results_.values<float>(1)[0];
  const Skip skip = judge(total, norm, now.batches, now.number);
  step_ = now.number;
  samples_ += batch;
  if (skip == Skip::no) ++updates_, updated_samples_ += batch;
  const bool updated = skip == Skip::no && std::isfinite(total) && std::isfinite(norm);
  return {.step = now.number,
          .loss = total / double(std::max<int64_t>(now.count.labels, 1)),
          .grad_norm = norm,
          .lr = lr,
          .loss_scale = loss_scale,
          .overflowed = skip == Skip::overflow,
          .skipped = skip == Skip::spike,
          .norm_median = norm_median,
          .tokens = plan_.dataset.rows ? now.count.tokens : batch * plan_.sample_length,
          .samples = samples_,
          .mean_document_length = mean_document_length(now.batches, plan_.sample_length),
          .experts = end_experts_step(updated, now.host_wait),
          .mtp_losses = mtp_losses(now.count),
          .ended = ended};
}

void Trainer::skip_first_step() {
  MT_CHECK(device_.is_recording() && step_ == 0 && !plan_.model.experts(),
           "step {} of a trainer is not skipped", step_ + 1);
  const Begun step{.number = 1, .losses = losses_of_step()};
  // Gradients whose reduction is deferred exist for all units at once.
  const plan::Layout& l = plan_.layout;
  const int64_t all = plan_.data_parallel.defer_reduce && l.step_micro_batches() > 1 ? 2 : 1,
                of_flush = std::min(all, l.micro_batches);
  data_parallel_->begin_step(all);
  for (int64_t done = 0; done < all; done += of_flush) call_hooks_of_passes(of_flush);
  update(step, 0);
  prepare_batch(2);
  step_ = updates_ = 1;
  samples_ = updated_samples_ = plan_.train.global_batch_size;
}

void Trainer::skip_stages(const std::set<int64_t>& stages) {
  MT_CHECK(device_.is_recording(), "a trainer that runs skips no stages");
  pipeline_->skip_stages(stages);
  data_parallel_->skip_stages(stages);
}

void Trainer::call_hooks_of_passes(int64_t micro_batches) {
  model::DataParallel& hooks = *data_parallel_;
  const std::vector<model::ParamUnit*> all = params_->units();
  for (const schedule::Action& a : pipeline_->actions()) {
    std::vector<model::ParamUnit*> units;
    std::ranges::copy_if(all, std::back_inserter(units),
                         [&](const model::ParamUnit* unit) { return unit->stage == a.stage; });
    const bool computes = is_compute(a.kind) && a.micro_batch < micro_batches;
    if (a.kind == schedule::ActionKind::unshard) {
      for (model::ParamUnit* unit : units) hooks.pin(*unit);
    } else if (a.kind == schedule::ActionKind::reshard) {
      for (model::ParamUnit* unit : units) hooks.unpin(*unit);
    } else if (computes && a.kind == schedule::ActionKind::F) {
      for (model::ParamUnit* unit : units) hooks.before_forward(*unit), hooks.after_forward(*unit);
    } else if (computes && gives_gradient(a.kind)) {
      for (model::ParamUnit* unit : std::views::reverse(units)) {
        hooks.before_backward(*unit);
        for (model::Parameter* p : unit->params)
          if (!p->frozen) hooks.grad_ready(*p);
        hooks.after_backward(*unit);
      }
    }
  }
}

Trainer::Begun Trainer::begin_step(int64_t number) {
  Begun step{.number = number, .batches = global_batch(number)};
  step.count = count_tokens(number, step.batches);
  step.losses = run_micro_batches(step.batches, number, grad_scales(step.count));
  step.host_wait = host_wait_;
  return step;
}

ops::Clip Trainer::update(const Begun& step, float lr) {
  finish_grads();
  sum_losses(step.losses);
  // Weights that are gathered in 8 bits are quantized with the new scales as soon as they are
  // updated. Otherwise the update comes first, since the host may wait for the maxima of experts.
  const bool scales_first = plan_.data_parallel.gather_as.has_value();
  const auto enqueue = [&](const ops::ClipLimits& limits) {
    const ops::Clip clip = clip_grads(step.losses.flat(0, {1}), limits);
    if (scales_first) end_float8_step(clip.scale);
    await_copies();
    // Changes nothing if the norm or the loss is not finite, or the norm is above its limit.
    optimizer_->step(compute_, updates_ + 1, lr, clip.scale,
                     [this](model::ParamUnit& unit) { data_parallel_->updated(unit); });
    return clip;
  };
  // The host has seen the norms of all earlier steps, also if this step has begun before.
  const ops::ClipLimits limits{.unscale = 1 / scaler_.scale(), .norm = spikes_.limit()};
  ops::Clip clip;
  if (graphs_ && graphs_->plan().full_step) {
    await_copies();  // a capture would wait for later copies, too
    clip = graphs_->run_update({updates_ + 1, lr, limits}, enqueue);
  } else {
    clip = enqueue(limits);
  }
  if (!scales_first) end_float8_step(clip.scale);
  if (impls_.quantizer) impls_.quantizer->weights_changed();
  return clip;
}

// In fp16 the result decides the scale of the next step's loss, and some routers' state follows it.
// If the host waits within micro-batches, it would see this step's result too late. A rank of
// several fails at once, since the others wait for its communication in the step that they have
// begun.
void Trainer::begin_next(int64_t number) {
  const plan::Layout& l = plan_.layout;
  const bool host_waits = l.pp > 1 || l.ep > 1;
  if (number > last_step_ || scaler_.on() || routers_.changes() || host_waits) return;
  try {
    begun_ = begin_step(number);
  } catch (...) {
    if (world_.size() > 1) throw;
    begin_failure_ = std::current_exception();
  }
}

void Trainer::look_at_result() {
  if (!result_seen_ && results_.ready()) result_seen_ = std::chrono::steady_clock::now();
}

bool Trainer::drop_begun() {
  begin_failure_ = {};
  if (!std::exchange(begun_, {}).number) return false;
  finish_grads();
  return true;
}

void Trainer::finish_grads() {
  data_parallel_->finish_grads();
  impls_.tensor->finish_grads(*params_);
  pipeline_->finish_grads(*params_);
}

void Trainer::sum_losses(const Tensor& losses) {
  const bool experts = plan_.model.experts();
  // Under sequence parallelism each tensor-parallel rank has routed only its own tokens.
  if (experts && impls_.tensor->sequence()) impls_.tensor->sum(experts_.sums_LS);
  for (const Tensor& values : {losses, experts ? experts_.sums_LS : Tensor()}) {
    if (!values) continue;
    data_parallel_->sum(values);
    pipeline_->sum(values);  // each stage has the values of its own layers and head
  }
}

ops::Clip Trainer::clip_grads(const Tensor& loss, const ops::ClipLimits& limits) {
  const auto sum_parts = [this](const Tensor& squares) {
    data_parallel_->sum_parts(squares);
    impls_.tensor->sum(squares);
    pipeline_->sum(squares);
  };
  return optim::clip_grad_norm(compute_, *params_, sum_parts, float(plan_.optimizer.clip_grad),
                               loss, limits);
}

void Trainer::end_float8_step(const Tensor& grad_scale) {
  if (!impls_.quantizer) return;
  const auto over_ranks = [this](const Tensor& amax, model::UnitKind of) {
    data_parallel_->max(amax, of);
    // Ranks of tp have different undivided experts, or copies, over which the line above reduces.
    const bool undivided = of == model::UnitKind::experts && plan_.layout.undivided_experts();
    if (!undivided) impls_.tensor->max(amax);
  };
  impls_.quantizer->end_step(compute_, over_ranks, grad_scale);
}

std::optional<ExpertStats> Trainer::end_experts_step(bool updated,
                                                     std::chrono::nanoseconds host_wait) {
  const spec::Experts* experts = plan_.model.experts();
  if (!experts) return {};
  const auto sums = results_.values<float>(2);
  const auto losses = results_.values<double>(3);
  ExpertStats stats =
      expert_loads(sums, plan_.model.layer_count(), experts->count, plan_.layout.ep);
  // Every context-parallel rank has added the losses of all tokens of its samples, so the sums
  // contain each loss share_.ranks times.
  const double added = double(global_micro_batches() * share_.ranks);
  stats.balance_loss = losses[0] / added, stats.z_loss = losses[1] / added;
  stats.host_wait_ms = std::chrono::duration<double, std::milli>(host_wait).count();
  if (updated) routers_.step_done(compute_, experts_.sums_LS, sums);
  return stats;
}

// Every rank has the same loss and norm. All therefore decide alike, without communication.
Trainer::Skip Trainer::judge(double loss, float norm, const std::vector<data::Batch>& batches,
                             int64_t step) {
  // A smaller loss scale does not cure a non-finite loss, which is computed before it is scaled.
  const plan::TrainOptions& check = plan_.train;
  const bool overflow = scaler_.on() && std::isfinite(loss) && !std::isfinite(norm);
  const bool bad_grads = !overflow && !std::isfinite(norm);
  const bool spike = spikes_.exceeds(norm);
  const bool skips = check.spikes.skip && (spike || bad_grads || !std::isfinite(loss));
  if (skips) spikes_.skipped();
  if (!skips || spikes_.in_row() == optim::SpikeGuard::kMostInRow) {
    if ((check.check_loss && !std::isfinite(loss)) || (check.check_grads && bad_grads))
      explain_non_finite(batches, step);
    if (spike || skips) stop_at_spike(norm, step);
  }
  if (std::isfinite(loss)) scaler_.update(step, overflow);
  if (skips) return Skip::spike;
  if (overflow) return Skip::overflow;
  spikes_.accepted(norm);
  return Skip::no;
}

void Trainer::stop_at_spike(float norm, int64_t step) {
  drop_begun();
  const bool spike = spikes_.exceeds(norm);
  std::string what = fmt::format("step {}: ", step);
  what += spike ? fmt::format(
                      "the gradient norm {:.4g} is {:.3g} times the median of the norms "
                      "before, {:.4g}, and train.spike_factor is {:g}",
                      norm, norm / spikes_.median(), spikes_.median(), plan_.train.spikes.factor)
                : std::string("loss or gradient is not finite");
  const bool skips = plan_.train.spikes.skip;
  if (skips)
    what += fmt::format("; it is the {}th step in a row that is skipped", spikes_.in_row());
  throw RunError(what, skips ? "lower optimizer.lr and resume from an earlier checkpoint; the last "
                               "steps' samples may also be at fault"
                             : "train.on_spike: skip leaves such a step out; a larger "
                               "train.spike_factor, or none, accepts it");
}

void Trainer::set_progress(const checkpoint::TrainProgress& progress) {
  drop_begun();
  await_copies();
  step_ = progress.steps_done;
  updates_ = progress.updates;
  samples_ = progress.samples, updated_samples_ = progress.updated_samples;
  last_step_ = plan::last_step(plan_.train, step_, samples_);
  loader_.begin_at(step_, samples_);
  prepared_step_ = counted_step_ = 0;  // they may have other samples
  if (scaler_.on() && !progress.loss_scale.empty()) scaler_.load(progress.loss_scale);
  spikes_ = optim::SpikeGuard(plan_.train.spikes);
  if (plan_.train.spikes.on() && !progress.spikes.empty()) spikes_.load(progress.spikes);
  routers_.loaded(compute_);
}

checkpoint::TrainProgress Trainer::progress() const {
  return {.steps_done = step_,
          .updates = updates_,
          .samples = samples_,
          .updated_samples = updated_samples_,
          .loss_scale = scaler_.on() ? scaler_.save() : std::string(),
          .spikes = spikes_.save()};
}

void Trainer::explain_non_finite(const std::vector<data::Batch>& batches, int64_t step) {
  drop_begun();
  Diagnosis(
      {.device = device_,
       .compute = compute_,
       .params = *params_,
       .data_parallel = *data_parallel_,
       .pipeline = *pipeline_,
       .control = control_,
       .run_again =
           [&] {
             const auto depths = size_t(plan_.model.mtp.depths);
             run_micro_batches(batches, step, {1.0f, std::vector<float>(depths, 1.0f)}, false);
           }})
      .explain(step);
}

// Returns the gradient of the reported loss with respect to a token's loss, times the loss scale.
float Trainer::grad_scale(int64_t label_tokens) const {
  const float parts = plan_.train.grads_per_micro_batch ? float(plan_.layout.micro_batches) : 1.0f;
  return label_tokens ? 1.0f / float(label_tokens) / parts * float(scaler_.scale()) : 0.0f;
}

Trainer::GradScales Trainer::grad_scales(const TokenCount& count) const {
  const spec::TokenPrediction& mtp = plan_.model.mtp;
  GradScales scales{.loss = grad_scale(count.labels), .depths = {}};
  for (const int64_t labels : count.further)
    scales.depths.push_back(grad_scale(labels) * mtp.loss_factor / float(mtp.depths));
  return scales;
}

Tensor Trainer::losses_of_depths(const Tensor& losses) const {
  const int64_t depths = plan_.model.mtp.depths;
  return depths > 0 ? losses.flat(losses.count() - depths, {depths}) : Tensor();
}

std::vector<double> Trainer::mtp_losses(const TokenCount& count) const {
  if (count.further.empty()) return {};
  std::vector<double> sums = results_.values<double>(4);
  for (size_t k = 0; k < sums.size(); ++k)
    sums[k] /= double(std::max<int64_t>(count.further[k], 1));
  return sums;
}

int64_t Trainer::global_micro_batches() const {
  return loader_.micro_batches() * data_parallel_->size();
}

// The routers' losses are means over all micro-batches of the global batch, those of other ranks
// included.
model::ExpertsOfStep Trainer::experts_of_step(const Tensor& loss_2) {
  const double parts = plan_.train.grads_per_micro_batch ? double(plan_.layout.micro_batches) : 1,
               factor = scaler_.scale() * double(data_parallel_->grad_factor());
  const spec::ModelSpec& m = plan_.model;
  model::ExpertsOfStep e{
      .loss_grad = float(factor / parts / double(global_micro_batches())),
      .loss_2 = loss_2,
      // Graphs hold the address, so it must be the same memory in every step.
      .sums_LS =
          experts_.sums_LS
              ? experts_.sums_LS
              : Tensor::empty(compute_,
                              {m.layer_count(), model::ExpertsOfStep::columns(m.experts()->count)},
                              DType::f32, device::MemoryCategory::buffers),
      .fraction_LE = routers_.fraction_LE()};
  host_wait_ = {};
  e.host_wait = &host_wait_;
  return e;
}

void Trainer::prepare_batch(int64_t step) {
  if (step > last_step_) return;
  bool failed = false;
  try {
    prepared_ = global_batch(step);
    prepared_step_ = step;
  } catch (const std::exception&) {
    // The step that needs the batch makes it again and fails then. The current step is complete.
    failed = true;
  }
  // All ranks take part, and each learns whether any has failed.
  std::vector<int64_t> counts{failed ? 0 : unmasked(prepared_), int64_t(failed),
                              failed ? 0 : tokens_of(prepared_)};
  for (int64_t k = 0; k < plan_.model.mtp.depths; ++k)
    counts.push_back(failed ? 0 : unmasked_at_depth(prepared_, size_t(k)));
  data_parallel_->begin_sum(std::move(counts));
  counted_step_ = step;
}

Trainer::TokenCount Trainer::count_tokens(int64_t step, const std::vector<data::Batch>& batches) {
  if (std::exchange(counted_step_, 0) == step) {
    const std::vector<int64_t> sums = data_parallel_->end_sum();
    if (sums[1] == 0)
      return {.labels = sums[0], .further = {sums.begin() + 3, sums.end()}, .tokens = sums[2]};
  }
  std::vector<int64_t> counts{unmasked(batches), tokens_of(batches)};
  for (int64_t k = 0; k < plan_.model.mtp.depths; ++k)
    counts.push_back(unmasked_at_depth(batches, size_t(k)));
  const std::vector<int64_t> sums = data_parallel_->sum_on_host(std::move(counts));
  return {.labels = sums[0], .further = {sums.begin() + 2, sums.end()}, .tokens = sums[1]};
}

std::vector<data::Batch> Trainer::global_batch(int64_t step) {
  if (std::exchange(prepared_step_, 0) == step) return std::exchange(prepared_, {});
  std::vector<data::Batch> batches;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t k = 0; k < loader_.micro_batches(); ++k) {
    data::Batch whole = loader_.micro_batch(step - 1, k);
    data::add_further_tokens(whole, plan_.model.mtp.depths);
    batches.push_back(share_of(std::move(whole)));
  }
  loads_.push_back({begin, std::chrono::steady_clock::now()});
  return batches;
}

data::Batch Trainer::share_of(data::Batch whole) const {
  // Rows may have any length, but 8-bit GEMMs need a multiple of 16 of them. Those over the part of
  // a rank of tensor parallelism need the plan's multiple.
  const bool rows = plan_.dataset.rows;
  const int64_t multiple =
      rows && plan_.fp8.on ? std::lcm(share_.multiple * plan_.fp8.rows_multiple, kFloat8Multiple)
                           : share_.multiple;
  if (share_.ranks > 1) return share_of_batch(whole, share_.rank, share_.ranks, multiple);
  return rows ? pad_rows(std::move(whole), multiple) : std::move(whole);
}

Tensor Trainer::run_micro_batches(const std::vector<data::Batch>& batches, int64_t step,
                                  const GradScales& grad_scales, bool finishes_step) {
  const bool full_step = graphs_ && graphs_->plan().full_step;
  const auto uploaded = upload(batches, step_inputs_);
  step_inputs_ = full_step ? uploaded : std::vector<model::MicroBatch>();
  const bool experts = plan_.model.experts();
  const Tensor losses = losses_of_step();
  if (experts) experts_ = experts_of_step(losses.flat(1, {2}));
  const auto begin = [&] {
    if (finishes_step) params_->zero_grads(compute_);
    ops::fill(compute_, losses, 0);
    if (experts) ops::fill(compute_, experts_.sums_LS, 0);
  };
  pipeline::MicroBatches work{.batches = uploaded,
                              .seed = uint64_t(plan_.train.seed),
                              .step = step,
                              .loss = losses.flat(0, {1}),
                              .grad_scale = grad_scales.loss * data_parallel_->grad_factor(),
                              .on_ready =
                                  [this](model::Parameter& p) {
                                    look_at_result();
                                    if (on_gradients_) on_gradients_(p);
                                    data_parallel_->grad_ready(p);
                                  },
                              .hooks = data_parallel_.get(),
                              .experts = experts ? &experts_ : nullptr};
  for (size_t k = 0; k < grad_scales.depths.size(); ++k)
    work.depths.push_back({.total = losses_of_depths(losses).flat(int64_t(k), {1}),
                           .grad_scale = grad_scales.depths[k] * data_parallel_->grad_factor()});
  for (size_t k = 0; k < batches.size(); ++k)
    work.numbers.push_back(int64_t(k) * data_parallel_->size() + data_parallel_->rank());
  data_parallel_->begin_step(int64_t(batches.size()) + (finishes_step ? 0 : 1));
  if (!graphs_) {
    begin();
    pipeline_->run(work);
    return losses;
  }
  // The first micro-batch that runs without a graph makes the 8-bit copies of weights that the step
  // keeps. If the step's first micro-batch runs as a graph, they must be made before it.
  const plan::CudaGraphs& plan = graphs_->plan();
  if (impls_.quantizer && plan.on && plan.first == 0) impls_.quantizer->prepare(compute_);
  graphs_->run(work, begin, !impls_.quantizer || impls_.quantizer->steady());
  return losses;
}

// Graphs hold the address of the loss, so it must be the same memory in every step. The caller sets
// it to 0.
Tensor Trainer::losses_of_step() {
  const int64_t count = (plan_.model.experts() ? 3 : 1) + plan_.model.mtp.depths;
  if (graphs_ && graphs_loss_) return graphs_loss_;
  const Tensor losses =
      Tensor::empty(compute_, {count}, DType::f64, device::MemoryCategory::buffers);
  if (graphs_) graphs_loss_ = losses;
  return losses;
}

std::vector<model::MicroBatch> Trainer::upload(const std::vector<data::Batch>& batches,
                                               const std::vector<model::MicroBatch>& into) {
  std::vector<model::MicroBatch> uploaded;
  for (size_t k = 0; k < batches.size(); ++k)
    uploaded.push_back(upload(batches[k], k < into.size() ? into[k] : model::MicroBatch()));
  return uploaded;
}

model::MicroBatch Trainer::upload(const data::Batch& b, const model::MicroBatch& into) {
  const Shape T{b.B * b.S};
  const auto put = [&](const Tensor& there_T, const auto& values) {
    if (there_T.count() != T.count()) return Tensor::from_host(compute_, T, values);
    tensor::upload(compute_, there_T, values);
    return there_T;
  };
  model::MicroBatch m;
  m.input_T = put(into.input_T, b.input);
  m.label_T = put(into.label_T, b.label);
  for (const data::Batch::Further& f : b.further) {
    m.further_input_T.push_back(put({}, f.input));
    m.further_label_T.push_back(put({}, f.label));
  }
  m.seq = {.B = b.B, .S = b.S, .position_T = put(into.seq.position_T, b.position)};
  m.seq.documents = b.documents;
  m.seq.packs = b.packs;
  if (!b.documents.empty()) {
    m.seq.longest_document = *std::ranges::max_element(b.documents);
    std::vector<int32_t> ends{0};
    for (const int64_t length : b.documents) ends.push_back(ends.back() + int32_t(length));
    m.seq.cu_seqlens = Tensor::from_host(compute_, {int64_t(ends.size())}, ends);
  }
  for (const data::PositionRun& run : b.runs) m.seq.runs.push_back({run.first, run.count});
  const spec::Experts* experts = plan_.model.experts();
  if (experts && !b.valid.empty()) m.seq.valid_T = put(into.seq.valid_T, b.valid);
  if (experts && experts->loss_coeffs.sample > 0 && !b.pack.empty())
    m.seq.sample_T = Tensor::from_host(compute_, T, b.pack);
  return m;
}

double Trainer::evaluate(const data::ValidationLoader& loader) {
  drop_begun();
  const Tensor loss = Tensor::from_host<double>(compute_, {1}, {0.0});
  int64_t label_tokens = 0;
  // With this many batches at once, a stage is busy for more than half of the time.
  const int64_t together = 2 * pipeline_->links().size - 1;
  for (int64_t first = 0; first < loader.batches(); first += together) {
    std::vector<data::Batch> batches;
    std::vector<int64_t> numbers;
    for (int64_t i = first; i < std::min(first + together, loader.batches()); ++i) {
      batches.push_back(share_of(loader.batch(i)));
      numbers.push_back(i);
      label_tokens += batches.back().unmasked;
    }
    const auto uploaded = upload(batches);
    const auto memory = graphs_ ? graphs_->share_memory() : nullptr;
    pipeline_->forward({.batches = uploaded,
                        .numbers = numbers,
                        .step = step_,
                        .training = false,
                        .loss = loss,
                        .hooks = data_parallel_.get()});
  }
  data_parallel_->sum(loss);
  pipeline_->sum(loss);
  label_tokens = data_parallel_->sum_on_host({label_tokens})[0];
  return loss.to_host<double>(compute_)[0] / double(std::max<int64_t>(label_tokens, 1));
}

namespace {
// Returns the parameters that checkpoints hold.
std::vector<spec::TensorSpec> saved_parameters(const RunPlan& plan) {
  std::vector<spec::TensorSpec> all = spec::parameters(plan.model);
  if (plan::saves_adapters_alone(plan)) std::erase_if(all, [](const auto& p) { return p.frozen; });
  return all;
}
}  // namespace

checkpoint::CheckpointParts Trainer::checkpoint_parts(bool to_read) {
  drop_begun();
  if (!to_read) await_copies();
  return {.compute = compute_,
          .params = *params_,
          .optimizer = *optimizer_,
          .data_parallel = *data_parallel_,
          .tensor_parallel = *impls_.tensor,
          .copies = checkpoint::copies_of_units(plan_, control_.rank()),
          .quantizer = quantizer(),
          .control = control_,
          .parameters = saved_parameters(plan_),
          .replicated = routers_.tensors(),
          .io_threads = int(plan_.checkpoint.io_threads)};
}

}  // namespace mtrain::train
