#include "pipeline/executor.h"

#include <optional>

#include "device/device.h"

namespace mtrain {

namespace {
// Computations that the host may enqueue ahead of their end: enough to keep the streams busy, and
// few enough that messages which are not yet used up have little memory.
constexpr size_t kAhead = 8;
}  // namespace

void Executor::run(const ActionList& list) {
  for (const Action& a : list) {
    std::optional<Device::Scope> scope;
    if (links_.size > 1) scope.emplace(links_.compute->device(), to_string(a));
    if (is_send(a.kind))
      send(a);
    else if (is_receive(a.kind))
      receive(a);
    else
      compute(a);
  }
  for (const auto& [key, c] : chunks_)
    MT_CHECK(!work_.training || (c.stash.empty() && c.wgrad.held() == 0),
             "stage {} keeps activations of micro-batch {}", key.first, key.second);
}

void Executor::compute(const Action& a) {
  for (const Event& message : messages_) links_.compute->wait(message);
  messages_.clear();
  place_ = 2 * all_stages_ * a.micro_batch +
           (a.kind == ActionKind::F ? a.stage : 2 * all_stages_ - 1 - a.stage);
  if (a.kind == ActionKind::F)
    forward(a);
  else if (a.kind == ActionKind::W)
    chunk(a.stage, a.micro_batch).wgrad.drain();
  else
    backward(a);
  if (links_.size > 1) stay_near();
}

void Executor::forward(const Action& a) {
  Chunk& c = chunk(a.stage, a.micro_batch);
  Gpt& stage = *stages_.at(a.stage);
  const MicroBatch& batch = work_.batches[size_t(a.micro_batch)];
  Step step = step_of(a, c);
  const Tensor y =
      stage.forward(step, batch, {batch.label_T, work_.loss, work_.grad_scale}, await(c.x));
  if (a.stage + 1 == all_stages_) return;
  if (stages_.contains(a.stage + 1))
    chunk(a.stage + 1, a.micro_batch).x.data = y;
  else
    c.y = y;
}

void Executor::backward(const Action& a) {
  Chunk& c = chunk(a.stage, a.micro_batch);
  Step step = step_of(a, c);
  c.wgrad.hold(a.kind == ActionKind::I);
  const Tensor dx =
      stages_.at(a.stage)->backward(step, work_.batches[size_t(a.micro_batch)], await(c.dy));
  if (a.stage == 0) return;
  if (stages_.contains(a.stage - 1))
    chunk(a.stage - 1, a.micro_batch).dy.data = dx;
  else
    c.dx = dx;
}

void Executor::send(const Action& a) {
  Chunk& c = chunk(a.stage, a.micro_batch);
  Tensor& data = a.kind == ActionKind::send_f ? c.y : c.dx;
  const Channel& channel = links_.to.at(a.peer);
  channel.on->wait(links_.compute->record());  // edge: the computation -> its result's way
  channel.group.send(data, 1 - channel.group.rank(), *channel.on);
  data = {};
  if (!options_.overlap && wait_for_sends_) messages_.push_back(channel.on->record());
}

// The memory belongs to the channel's stream, which need not wait for compute to write there.
void Executor::receive(const Action& a) {
  Chunk& c = chunk(a.stage, a.micro_batch);
  const Channel& channel = links_.from.at(a.peer);
  const Shape shape = stages_.at(a.stage)->hidden_shape(work_.batches[size_t(a.micro_batch)].seq);
  const Tensor data = Tensor::empty(*channel.on, shape, options_.dtype);
  // edge: the computations before a message -> it
  if (!options_.overlap) channel.on->wait(links_.compute->record());
  channel.group.receive(data, 1 - channel.group.rank(), *channel.on);
  (a.kind == ActionKind::recv_f ? c.x : c.dy) = {data, channel.on->record()};
  if (!options_.overlap) messages_.push_back(channel.on->record());
}

Tensor Executor::await(Incoming& incoming) {
  links_.compute->wait(incoming.there);  // edge: its receive -> the computation
  return std::exchange(incoming, {}).data;
}

Executor::Chunk& Executor::chunk(int64_t stage, int64_t micro_batch) {
  return chunks_.try_emplace({stage, micro_batch}, work_.on_ready).first->second;
}

Step Executor::step_of(const Action& a, Chunk& c) {
  return {*links_.compute,
          c.wgrad,
          c.stash,
          work_.batches[size_t(a.micro_batch)].seq,
          work_.seed,
          work_.step,
          work_.numbers[size_t(a.micro_batch)],
          work_.training,
          work_.use};
}

void Executor::stay_near() {
  computed_.push_back(links_.compute->record());
  if (computed_.size() <= kAhead) return;
  links_.compute->synchronize(computed_.front());
  computed_.pop_front();
}

}  // namespace mtrain
