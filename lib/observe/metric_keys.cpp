#include "observe/metric_keys.h"

#include <algorithm>

#include <fmt/core.h>

#include "device/stream_id.h"

namespace mtrain::observe {

namespace {

constexpr std::string_view kKind = "<kind>", kDepth = "<depth>";

using Record = MetricKey::Record;
constexpr std::string_view kExperts = "the model has experts";
constexpr std::string_view kSpread = "the model has experts, and `ep_size` is above 1";
constexpr std::string_view kFp16 = "`mixed_precision` is one of fp16";
constexpr std::string_view kTimed = "timed steps of several ranks, for kinds that communicated";
constexpr std::string_view kRanks = "timed steps of several ranks";
constexpr std::string_view kOfMost = "the same on the rank that has most of this category";
constexpr std::string_view kSpeeds =
    "every 50th step of several ranks, for `train.straggler: warn`";
constexpr std::string_view kPaired = "timed steps in which a forward and a backward run as a pair";
constexpr std::string_view kBackground = "a save in the background has ended since the last record";

constexpr MetricKey kKeys[] = {
    {"step", Record::any, "", "number of the step, from 1; an evaluation comes after this step"},
    {"time", Record::any, "s", "when the record was written: UNIX time, with milliseconds"},
    {"elapsed_s", Record::any, "s",
     "time since this process opened the file, shortly before its first step"},
    {"loss", Record::step, "nats per token",
     "training loss: mean over the labels of the global batch, without the losses of routers"},
    {"mtp_loss.<depth>", Record::step, "nats per token",
     "the same for the tokens that are this many later, from 1; `loss` has no part of it",
     "`model.mtp_num_layers` is above 0"},
    {"lr", Record::step, "", "learning rate of this step"},
    {"grad_norm", Record::step, "", "norm of the gradient of all weights, before clipping"},
    {"tokens", Record::step, "tokens", "tokens since step 1, masked ones included; null in rows"},
    {"total_steps", Record::step, "steps", "number of steps of the run (`train.steps`)"},
    {"step_ms", Record::step, "ms", "how long the step took, without evaluations and saves"},
    {"step_ms.max", Record::step, "ms", "the same on the rank where it took longest", kRanks},
    {"step_ms.max_rank", Record::step, "", "that rank", kRanks},
    {"tokens_per_s", Record::step, "tokens/s", "tokens of the step over step_ms"},
    {"mfu", Record::step, "",
     "FLOP/s of the model over the measured peak of all ranks' devices, from 0 to 1; null if "
     "unknown"},
    {"memory_peak", Record::step, "bytes",
     "largest memory of rank 0 on its device since its start"},
    {"memory_peak.max", Record::step, "bytes", "the same on the rank that needs most", kRanks},
    {"memory_peak.max_rank", Record::step, "", "that rank", kRanks},
    {"memory_peak.params", Record::step, "bytes",
     "largest memory of rank 0 for parameters; the categories need not be largest at the same "
     "time"},
    {"memory_peak.params.max", Record::step, "bytes", kOfMost, kRanks},
    {"memory_peak.grads", Record::step, "bytes", "the same for gradients"},
    {"memory_peak.grads.max", Record::step, "bytes", kOfMost, kRanks},
    {"memory_peak.optimizer", Record::step, "bytes", "the same for the state of the optimizer"},
    {"memory_peak.optimizer.max", Record::step, "bytes", kOfMost, kRanks},
    {"memory_peak.activations", Record::step, "bytes", "the same for activations"},
    {"memory_peak.activations.max", Record::step, "bytes", kOfMost, kRanks},
    {"memory_peak.buffers", Record::step, "bytes",
     "the same for buffers, such as those of communication"},
    {"memory_peak.buffers.max", Record::step, "bytes", kOfMost, kRanks},
    {"memory_peak.workspace", Record::step, "bytes", "the same for the workspace of kernels",
     "kernels use workspace, on a GPU"},
    {"memory_peak.workspace.max", Record::step, "bytes", kOfMost,
     "kernels use workspace, on a GPU; timed steps of several ranks"},
    {"memory_planned", Record::step, "bytes",
     "planned memory of the rank that needs most, without that of NCCL"},
    {"checkpoint.failed_saves", Record::step, "saves",
     "checkpoints that this process could not save until then", "a save has failed"},
    {"checkpoint.local_failures", Record::step, "copies",
     "local copies that were not complete, or have no replica, until then",
     "`checkpoint.local` is on, and one has failed"},
    {"checkpoint.local_staged_bytes", Record::step, "bytes",
     "bytes that rank 0 has copied into host memory for local copies since the record before; none "
     "for a step that is saved from such a copy at the same time",
     "the first after a local copy"},
    {"checkpoint.skipped_saves", Record::step, "saves",
     "checkpoints that were due while another was being written, and left out",
     "`checkpoint.when_busy` is `skip`, and one was"},
    {"checkpoint.stall_ms", Record::step, "ms",
     "how long the host of rank 0 kept training waiting for saves since the record before",
     "the first after a save"},
    {"checkpoint.write_s", Record::step, "s",
     "how long a save in the background took, from the end of the copies on", kBackground},
    {"checkpoint.write_gb_per_s", Record::step, "GB/s",
     "bytes of all tensors of that checkpoint over write_s", kBackground},
    {"checkpoint.staged_bytes", Record::step, "bytes",
     "host memory of the copy from which rank 0 has written", kBackground},
    {"checkpoint.age_s", Record::step, "s", "time since the save of the newest checkpoint began",
     "this process has saved one"},
    {"loss_scale", Record::step, "", "factor of the loss in this step", kFp16},
    {"skipped", Record::step, "", "1 if the step was skipped, and nothing was updated, else 0",
     "`mixed_precision` is one of fp16, `train.on_spike` is `skip`, or there is a "
     "`train.spike_factor`"},
    {"grad_norm_median", Record::step, "",
     "median of the norms before this step; null until there are 16",
     "there is a `train.spike_factor`"},
    {"moe.aux_loss", Record::step, "", "balance loss, summed over layers", kExperts},
    {"moe.z_loss", Record::step, "", "z-loss of the routers, summed over layers", kExperts},
    {"moe.load_max", Record::step, "", "largest load of an expert over its layer's mean", kExperts},
    {"moe.load_cv", Record::step, "",
     "standard deviation of experts' loads over their mean, averaged over layers", kExperts},
    {"moe.dead", Record::step, "experts", "experts that no token chose, in all layers", kExperts},
    {"moe.rank_load_max", Record::step, "",
     "largest part of a layer's rows on one rank of ep, over the mean", kSpread},
    {"moe.host_wait_ms", Record::step, "ms",
     "how long the host of rank 0 waited for numbers of rows", kSpread},
    {"moe.dropped", Record::step, "",
     "part of all choices that were dropped, since their expert's capacity was full, from 0 to 1",
     "`model.moe` sets a capacity factor"},
    {"comm.<kind>.busy_ms", Record::step, "ms",
     "time in which communication of this kind was at work", kTimed},
    {"comm.<kind>.exposed_ms", Record::step, "ms", "part of it that the compute stream waited for",
     kTimed},
    {"comm.<kind>.idle_ms", Record::step, "ms",
     "time in which compute waited for communication that another rank had not begun; null if "
     "unknown",
     kTimed},
    {"comm.<kind>.paired_busy_ms", Record::step, "ms", "part of busy_ms that pairs enqueued",
     kPaired},
    {"comm.<kind>.paired_exposed_ms", Record::step, "ms",
     "part of exposed_ms in computations of pairs", kPaired},
    {"comm.<kind>.bytes", Record::step, "bytes", "bytes that rank 0 sent", kTimed},
    {"comm.exposed_ms.max", Record::step, "ms",
     "time in which compute waited for communication of any kind, on the rank where it was longest",
     kRanks},
    {"comm.exposed_ms.max_rank", Record::step, "", "that rank", kRanks},
    {"compute.busy_ms", Record::step, "ms", "time in which rank 0's compute stream computed",
     kRanks},
    {"compute.busy_ms.max", Record::step, "ms", "the same on the rank that computed longest",
     kRanks},
    {"compute.busy_ms.max_rank", Record::step, "", "that rank", kRanks},
    {"compute.speed.min", Record::step, "",
     "speed of the rank that computes slowest, over that of the other ranks of its pipeline stage",
     kSpeeds},
    {"compute.speed.min_rank", Record::step, "", "that rank", kSpeeds},
    {"compute.starved_ms", Record::step, "ms",
     "time in which rank 0's compute stream neither computed nor waited for another stream",
     kRanks},
    {"validation_loss", Record::evaluation, "nats per token", "mean loss over validation samples"},
    {"validation_samples", Record::evaluation, "samples", "how many samples were evaluated"},
};

bool is_kind(std::string_view word) {
  for (int kind = 0; kind <= int(device::StreamKind::tp); ++kind)
    if (device::stream_kind_name(device::StreamKind(kind)) == word) return true;
  return false;
}

bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

bool matches(std::string_view pattern, std::string_view name) {
  const size_t at = pattern.find('<');
  if (at == std::string_view::npos) return pattern == name;
  const bool kind = pattern.substr(at).starts_with(kKind);
  const auto before = pattern.substr(0, at),
             after = pattern.substr(at + (kind ? kKind : kDepth).size());
  if (name.size() < before.size() + after.size() || !name.starts_with(before) ||
      !name.ends_with(after))
    return false;
  const auto word = name.substr(at, name.size() - before.size() - after.size());
  return kind ? is_kind(word) : is_number(word);
}

std::string table_of(Record record) {
  std::string out = "| key | unit | meaning | which records have it |\n|---|---|---|---|\n";
  for (const MetricKey& key : kKeys)
    if (key.record == record)
      out += fmt::format("| `{}` | {} | {} | {} |\n", key.name, key.unit, key.meaning,
                         key.when.empty() ? "all" : key.when);
  return out;
}

}  // namespace

std::span<const MetricKey> metric_keys() { return kKeys; }

const MetricKey* find_metric_key(std::string_view name) {
  const auto* key =
      std::ranges::find_if(kKeys, [&](const MetricKey& k) { return matches(k.name, name); });
  return key == std::end(kKeys) ? nullptr : key;
}

std::string metrics_markdown() {
  std::string kinds;
  for (int kind = 0; kind <= int(device::StreamKind::tp); ++kind)
    if (kind != int(device::StreamKind::compute) && kind != int(device::StreamKind::copy))
      kinds += fmt::format("{}`{}`", kinds.empty() ? "" : ", ",
                           device::stream_kind_name(device::StreamKind(kind)));
  return fmt::format(
      "# Every key of metrics.jsonl\n\n"
      "This page lists what the records in a run folder's `metrics.jsonl` hold, with units.\n"
      "It is the output of `mtrain schema --metrics`; do not edit it. "
      "[performance.md](../performance.md#the-curves-of-a-run) shows how to draw and read them.\n\n"
      "Each line of the file is a record, a JSON object: one per step, and one per evaluation. A "
      "record is complete when its\nline ends. A number that is not finite, or that is unknown, is "
      "`null`. A resumed run appends to the file. It first removes\nthe records of steps that it "
      "repeats. A reader of any such file should let the later record of a step win.\n\n"
      "## All records\n\n{}\n## Records of steps\n\n{}\n"
      "`<kind>` is a kind of communication: {}. Timed steps are the first ten steps of a process, "
      "and "
      "then every\n`train.log_every`-th, or every `train.time_every`-th; "
      "[overlap.md](../overlap.md) explains these figures. Among "
      "several ranks, figures of memory,\ntime and communication are those of rank 0. A key that "
      "ends in `.max` has the largest figure of all ranks, and `.max_rank` the\nfirst rank that "
      "has "
      "it.\n\n"
      "## Records of evaluations\n\n{}",
      table_of(Record::any), table_of(Record::step), kinds, table_of(Record::evaluation));
}

}  // namespace mtrain::observe
