#include "pipeline/executor.h"

#include <algorithm>

#include "device/device.h"
#include "model/graph_inputs.h"
#include "ops/elementwise.h"

namespace mtrain::pipeline {

namespace {
// The largest number of enqueued computations that have not ended. It is large enough to keep the
// streams busy, and small enough that messages waiting for their use take little memory.
constexpr size_t kMaxInFlight = 8;
}  // namespace

// Marks the work that is enqueued while it lives as part of a computation.
class Executor::DataflowScope {
 public:
  DataflowScope(Executor& e, const schedule::Action& a, const char* prefix = "") {
    const int64_t all = e.all_stages_;
    e.run_ahead_.dataflow_index =
        2 * all * (e.work_.first + a.micro_batch) +
        (a.kind == schedule::ActionKind::F ? a.stage : 2 * all - 1 - a.stage);
    Device& device = e.links_.compute->device();
    if (e.links_.size > 1 || e.options_.pair_costs || device.timing_sink() || device.ranges() ||
        device.records())
      scope_.emplace(device, prefix + to_string(a));
  }

 private:
  std::optional<Device::Scope> scope_;
};

void Executor::run(const schedule::ActionList& list) {
  for (size_t next = 0; next < list.size();) {
    const schedule::Action& a = list[next];
    if (is_compute(a.kind)) {
      next = compute(list, next);
      continue;
    }
    if (is_send(a.kind))
      send(a);
    else if (is_receive(a.kind))
      receive(a);
    else
      change_sharding(a);
    ++next;
  }
  run_delayed();
  await_messages();
  if (outputs_.held()) {
    const Device::Scope scope(links_.compute->device(), "deferred output");
    outputs_.drain();
  }
  for (const auto& [key, c] : chunks_)
    MT_CHECK(!work_.training || (c.stash.empty() && c.wgrad.held() == 0),
             "stage {} keeps activations of micro-batch {}", key.first, key.second);
}

size_t Executor::compute(const schedule::ActionList& list, size_t next) {
  run_delayed();  // the sends are enqueued by now, and compute does not wait for messages yet
  await_messages();
  const schedule::Action& a = list[next];
  if (a.overlaps_next && next + 1 < list.size()) {
    next = pair(list, next);
  } else {
    if (a.kind == schedule::ActionKind::W) {
      weight_gradients(a);
    } else {
      Running r = start(a);
      if (a.kind == schedule::ActionKind::B && pairs_.orders_lone_backwards())
        run_ordered(pairs_.alone(a, r.pass, keeps_wgrads_of(a)), nullptr, r);
      while (!r.done()) advance(r);
      finish(r);
    }
    ++next;
  }
  if (links_.size > 1) limit_run_ahead();
  return next;
}

size_t Executor::pair(const schedule::ActionList& list, size_t next) {
  const Device::PairScope timed_as_pair(links_.compute->device());
  // The other pass hides the exchanges; chunks would only divide them.
  Running forward = start(list[next], false), backward = start(list[next + 1], false);
  const bool at_once = options_.paired_gradient == schedule::PairedGradient::at_once;
  paired_ = list[next + 1];
  next += 2;
  // A pass that has ended is sent before the other one ends, but sends keep the list's order.
  const auto send_ended = [&] {
    for (; next < list.size() && is_send(list[next].kind); ++next) {
      const bool gradient = list[next].kind == schedule::ActionKind::send_b;
      Running& r = gradient ? backward : forward;
      if (!r.done() || (gradient && !at_once)) return;
      finish(r);
      send(list[next]);
    }
  };
  run_ordered(pairs_.pair(forward.action, forward.pass, backward.action, backward.pass,
                          keeps_wgrads_of(backward.action)),
              &forward, backward, [&] {
                if (options_.overlap) send_ended();
              });
  finish(forward);
  finish(backward);
  return next;
}

void Executor::run_ordered(const PassOrder& order, Running* forward, Running& backward,
                           const std::function<void()>& after_step) {
  // For each part of the backward, its weight gradients in the queue, oldest first.
  struct Held {
    size_t entries;
    bool own_step;
  };
  std::vector<Held> held;
  model::WgradQueue& wgrad = backward.chunk->wgrad;
  size_t part = 0;  // of the backward
  for (const schedule::PairStep step : order.steps) {
    switch (step) {
      case schedule::PairStep::forward: advance(*forward); break;
      case schedule::PairStep::backward: {
        const size_t before = wgrad.held();
        const bool own_step = order.own_wgrads[part++];
        advance(backward, own_step);
        held.push_back({wgrad.held() - before, own_step});
        break;
      }
      case schedule::PairStep::weight_gradients: {
        const auto now = std::ranges::find(held, true, &Held::own_step);
        size_t older = 0;
        for (auto h = held.begin(); h != now; ++h) older += h->entries;
        const DataflowScope scope(*this, backward.action, "weights of ");
        wgrad.drain_after(older, now->entries);
        held.erase(now);
        break;
      }
    }
    if (after_step) after_step();
  }
}

model::StagePass Executor::pass_of(const schedule::Action& a, bool alone) {
  model::Gpt& stage = *stages_.at(a.stage);
  const model::MicroBatch& batch = work_.batches[size_t(a.micro_batch)];
  model::Step step = step_of(a, chunk(a.stage, a.micro_batch));
  step.chunks_experts = alone;
  return a.kind == schedule::ActionKind::F ? stage.forward_pass(step, batch, loss_request(batch))
                                           : stage.backward_pass(step, batch);
}

void Executor::begin(Running& r) {
  if (r.begun) return;
  r.pass.set_input(await(r.action.kind == schedule::ActionKind::F ? r.chunk->x : r.chunk->dy));
  r.begun = true;
}

model::LossRequest Executor::loss_request(const model::MicroBatch& batch) const {
  return {batch.label_T, work_.loss, work_.grad_scale,
          work_.graph_inputs ? work_.graph_inputs->grad_scale() : Tensor(), work_.depths};
}

void Executor::advance(Running& r, bool hold) {
  const DataflowScope scope(*this, r.action);
  begin(r);
  if (r.done()) return;  // a stage without layers
  model::WgradQueue& wgrad = r.chunk->wgrad;
  const bool at_end = waits_for_end(r);
  const bool later = hold || keeps_wgrads(r.action, r.pass.next()) || at_end;
  const size_t held = wgrad.held();
  wgrad.hold(later || options_.split_wgrad);
  r.pass.run_next();
  if (!later) wgrad.drain_after(held);
  if (at_end) wgrad.hand_over(outputs_);
}

void Executor::finish(Running& r) {
  if (!r.chunk) return;
  begin(r);
  const schedule::Action& a = r.action;
  const bool forward = a.kind == schedule::ActionKind::F;
  if (a.kind == schedule::ActionKind::B && r.chunk->wgrad.held()) delayed_.push_back(a);
  const Tensor result = r.pass.result();
  const int64_t to = a.stage + (forward ? 1 : -1);
  if (to >= 0 && to < all_stages_) {
    if (stages_.contains(to)) {
      Chunk& other = chunk(to, a.micro_batch);
      // Rounded like a message: the numbers must not depend on which rank has the next stage.
      (forward ? other.x : other.dy).data =
          ops::in_dtype(*links_.compute, ops::in_dtype(*links_.compute, result, options_.dtype),
                        options_.compute_dtype);
    } else {
      (forward ? r.chunk->y : r.chunk->dx) = result;
    }
  }
  r.chunk = nullptr;
}

bool Executor::waits_for_send(const schedule::Action& a, const model::StagePass::Part& part) const {
  if (a.kind != schedule::ActionKind::B || a.stage == 0 || stages_.contains(a.stage - 1))
    return false;
  return part.layer >= 0 && part.layer < options_.delayed_layers &&
         (options_.delay_mlp_wgrads || part.kind != model::SegmentKind::mlp);
}

bool Executor::keeps_wgrads(const schedule::Action& a, const model::StagePass::Part& part) const {
  return a.kind == schedule::ActionKind::I || waits_for_send(a, part);
}

bool Executor::waits_for_end(const Running& r) const {
  const schedule::Action& a = r.action;
  const auto first = int64_t(work_.batches.size()) - options_.deferred_outputs;
  return a.kind == schedule::ActionKind::F && a.stage + 1 == all_stages_ &&
         a.micro_batch >= first && work_.training && r.pass.next().kind == model::SegmentKind::head;
}

void Executor::weight_gradients(const schedule::Action& a) {
  const DataflowScope scope(*this, a);
  chunk(a.stage, a.micro_batch).wgrad.drain();
}

void Executor::run_delayed() {
  for (const schedule::Action& a : std::exchange(delayed_, {})) {
    const DataflowScope scope(*this, a, "delayed ");
    chunk(a.stage, a.micro_batch).wgrad.drain();
  }
}

// A `reduce` needs no work: the data-parallel strategy reduces a gradient as soon as the last
// micro-batch has added to it.
void Executor::change_sharding(const schedule::Action& a) {
  if (a.kind == schedule::ActionKind::reduce || !work_.hooks) return;
  const Device::Scope scope(links_.compute->device(), to_string(a));
  for (model::ParamUnit* unit : stages_.at(a.stage)->units())
    a.kind == schedule::ActionKind::unshard ? work_.hooks->pin(*unit) : work_.hooks->unpin(*unit);
}

void Executor::send(const schedule::Action& a) {
  const Device::Scope scope(links_.compute->device(), to_string(a));
  Chunk& c = chunk(a.stage, a.micro_batch);
  const bool gradient = a.kind == schedule::ActionKind::send_b;
  Tensor& data = gradient ? c.dx : c.y;
  data = ops::in_dtype(*links_.compute, data, options_.dtype);
  const Channel& channel = links_.to.at(a.peer);
  channel.stream->wait(links_.compute->record());  // edge: the computation -> its result's send
  if (!options_.overlap) await_turn(*channel.stream);
  channel.group.send(data, 1 - channel.group.rank(), *channel.stream);
  data = {};
  const bool holds_compute = options_.paired_gradient == schedule::PairedGradient::in_order &&
                             gradient && gives_gradient(paired_.kind) && paired_.stage == a.stage &&
                             paired_.micro_batch == a.micro_batch;
  if (!options_.overlap || holds_compute) messages_.push_back(channel.stream->record());
}

// The memory is allocated on the channel's stream; the receive then need not wait for compute.
void Executor::receive(const schedule::Action& a) {
  const Device::Scope scope(links_.compute->device(), to_string(a));
  Chunk& c = chunk(a.stage, a.micro_batch);
  const Channel& channel = links_.from.at(a.peer);
  const model::Gpt& stage = *stages_.at(a.stage);
  const model::SequenceInfo& seq = work_.batches[size_t(a.micro_batch)].seq;
  const Shape shape = a.kind == schedule::ActionKind::recv_f
                          ? stage.input_shape(seq, work_.training)
                          : stage.result_shape(seq, work_.training);
  const Tensor data = Tensor::empty(*channel.stream, shape, options_.dtype);
  if (!options_.overlap) await_turn(*channel.stream);
  channel.group.receive(data, 1 - channel.group.rank(), *channel.stream);
  (a.kind == schedule::ActionKind::recv_f ? c.x : c.dy) = {data, channel.stream->record()};
  if (!options_.overlap) messages_.push_back(channel.stream->record());
}

void Executor::await_turn(Stream& channel) {
  channel.wait(links_.compute->record());  // edge: the computations before a message -> the message
  if (options_.one_by_one && !messages_.empty())
    channel.wait(messages_.back());  // edge: the message before -> this one
}

void Executor::await_messages() {
  for (const Event& message : std::exchange(messages_, {})) links_.compute->wait(message);
}

Tensor Executor::await(PendingTensor& pending) {
  links_.compute->wait(pending.ready);  // edge: the tensor's receive -> the computation
  const Tensor data = std::exchange(pending, {}).data;
  return data ? ops::in_dtype(*links_.compute, data, options_.compute_dtype) : data;
}

Executor::Chunk& Executor::chunk(int64_t stage, int64_t micro_batch) {
  return chunks_.try_emplace({stage, micro_batch}, work_.on_ready).first->second;
}

model::Step Executor::step_of(const schedule::Action& a, Chunk& c) {
  return {.compute = *links_.compute,
          .wgrad = c.wgrad,
          .stash = &c.stash,
          .seq = work_.batches[size_t(a.micro_batch)].seq,
          .seed = work_.seed,
          .step = work_.step,
          .micro_batch = work_.numbers[size_t(a.micro_batch)],
          .training = work_.training,
          .hooks = work_.hooks,
          .graph_inputs = work_.graph_inputs,
          .experts = work_.experts};
}

void Executor::limit_run_ahead() {
  std::deque<Event>& computed = run_ahead_.computed;
  computed.push_back(links_.compute->record());
  if (computed.size() <= kMaxInFlight) return;
  links_.compute->synchronize(computed.front());
  computed.pop_front();
}

}  // namespace mtrain::pipeline
