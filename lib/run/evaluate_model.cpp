#include "run/evaluate_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "data/dataset/strided_dataset.h"
#include "interchange/model_source.h"
#include "run/open_device.h"
#include "run/stored_model.h"
#include "train/build_trainer.h"
#include "train/data_setup.h"

namespace mtrain::run {

namespace {

// The samples of an evaluation. The first `count` are evaluated; 0: all.
struct Samples {
  std::shared_ptr<const data::Dataset> data;
  int64_t count = 0;
  std::string note = {};
};

constexpr const char* kData = "--data";

std::shared_ptr<const data::Dataset> open_windows(const std::string& prefix, int64_t stride,
                                                  const RunPlan& plan, const data::IdCheck& ids) {
  auto tokens = train::open_tokens(prefix, kData);
  const bool packed = plan.dataset.packed_size > 0,
             by_document = plan.dataset.by_document() || tokens->masked();
  return std::make_shared<data::StridedDataset>(
      std::move(tokens), data::StridedDatasetOptions{.window = plan.sample_length,
                                                     .stride = stride,
                                                     .packed = packed,
                                                     .by_document = by_document,
                                                     .ids = ids});
}

// Returns the number of tokens of a set that is read as one stream; 0 if its documents are
// separate.
int64_t stream_tokens(const std::string& prefix, const RunPlan& plan) {
  const auto tokens = train::open_tokens(prefix, kData);
  return plan.dataset.by_document() || tokens->masked() ? 0 : tokens->tokens();
}

// Returns a note about the tokens of a stream that are in no sample of a run; empty if there are
// none.
std::string left_out(const std::string& prefix, int64_t tokens, int64_t S) {
  const int64_t rest = tokens > 0 ? (tokens - 1) % S : 0;
  if (rest == 0) return "";
  return fmt::format(
      "{}: the last {} tokens do not fill a sample and are not evaluated; --stride {} includes "
      "them",
      prefix, rest, S);
}

Samples open_samples(const EvaluateJob& job, const RunPlan& plan, const data::IdCheck& ids) {
  if (job.stride > 0 && job.data.size() != 1)
    throw UserError(fmt::format("--stride needs one --data, and there are {}", job.data.size()),
                    "evaluate the sets one by one, or leave --stride out");
  if (job.stride > 0) return {open_windows(job.data[0], job.stride, plan, ids)};
  plan::DatasetOptions options = plan.dataset;
  if (!job.data.empty()) {
    const int64_t S = plan.sample_length;
    const int64_t stream = job.data.size() == 1 ? stream_tokens(job.data[0], plan) : 0;
    // A text that is too short for a sample of a run is evaluated as a window.
    if (stream > 0 && stream <= S) return {open_windows(job.data[0], S, plan, ids)};
    options.validation = {.prefixes = job.data, .weights = {}};
    auto data = train::open_validation_data(options, ids, kData);
    const std::string note = data->note();
    return {std::move(data), 0, note.empty() ? left_out(job.data[0], stream, S) : note};
  }
  auto data = train::open_validation_data(options, ids);
  if (!data)
    throw UserError(fmt::format("the recipe of {} has no dataset.validation", job.model),
                    "name the prefix of a .bin/.idx pair as --data");
  const std::string note = data->note();
  return {std::move(data), plan.validation.steps * plan.train.global_batch_size, note};
}

// Returns whether a token begins or ends documents, and is therefore not a part of their text.
bool frames_text(const data::Tokenizer& tokenizer, int32_t id) {
  const auto prefix = tokenizer.text_prefix();
  return tokenizer.eod() == id || tokenizer.bos() == id ||
         std::ranges::find(prefix, id) != prefix.end();
}

// Returns the bytes of the text of ids[1] and those after it. A token's text may depend on the
// previous token, which is therefore decoded with it and then subtracted. Documents are decoded one
// by one, since a token's text may differ at the beginning of a text.
int64_t bytes_of(std::span<const int32_t> ids, const data::Tokenizer& tokenizer) {
  int64_t bytes = 0;
  std::vector<int32_t> document;
  const auto add = [&] {
    bytes += int64_t(tokenizer.decode(document).size());
    document.clear();
  };
  if (!frames_text(tokenizer, ids[0])) bytes -= int64_t(tokenizer.decode(ids.first(1)).size());
  for (const int32_t id : ids) {
    if (!frames_text(tokenizer, id))
      document.push_back(id);
    else
      add();
  }
  add();
  return bytes;
}

// Adds the number of tokens that have a loss, and the bytes of their text if there is a tokenizer.
// It processes each run of consecutive labels of a sample.
void count(const data::Dataset& data, const data::Tokenizer* tokenizer, Evaluation& e) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < e.windows; ++i) {
    data::Sample sample;
    data.sample(i, sample);
    const auto& label = sample.label;
    for (size_t from = 0; from < label.size();) {
      if (label[from] < 0) {
        ++from;
        continue;
      }
      size_t to = from + 1;
      while (to < label.size() && label[to] >= 0 && sample.position[to] != 0) ++to;
      e.tokens += int64_t(to - from);
      ids.assign(1, sample.input[from]);
      ids.insert(ids.end(), label.begin() + int64_t(from), label.begin() + int64_t(to));
      if (tokenizer) e.bytes += bytes_of(ids, *tokenizer);
      from = to;
    }
  }
}

Evaluation evaluate_on(comm::World world, const EvaluateJob& job, const RunPlan& plan,
                       const StoredModel& model) {
  const Samples samples = open_samples(job, plan, {plan.model.vocab, model.tokenizer});
  const auto device = open_device(plan.device, job.job);
  train::Trainer trainer = train::build_trainer(*device, plan, samples.data, std::move(world));
  load_model(trainer, model);
  const data::ValidationLoader loader(samples.data, samples.count,
                                      {.micro_batch = plan.layout.micro_batch,
                                       .dp_rank = trainer.data_parallel().rank(),
                                       .dp_size = trainer.data_parallel().size()});
  Evaluation e{.windows = loader.samples(),
               .window = samples.data->seq_length(),
               .stride = job.stride,
               .note = samples.note};
  e.data = job.data.empty() ? plan.dataset.validation.prefixes : job.data;
  e.nats_per_token = trainer.evaluate(loader);
  if (!std::isfinite(e.nats_per_token))
    throw RunError(fmt::format("the mean loss of {} is {}", job.model, e.nats_per_token),
                   "a weight is not finite, or a value overflows its type");
  // After the evaluation, which has refused ids outside of the model's vocabulary.
  count(*samples.data, model.tokenizer.get(), e);
  trainer.control().any(false);  // if rank 0 serves the store, it must end last
  return e;
}

}  // namespace

double Evaluation::perplexity() const { return std::exp(nats_per_token); }
double Evaluation::bits_per_byte() const {
  return bytes ? nats_per_token * double(tokens) / std::numbers::ln2 / double(bytes) : 0;
}

Evaluation evaluate_model(const EvaluateJob& job) {
  const IgnoreSigpipe pipes;
  const StoredModel model = open_model(job.model, job.machine, job.tokenizer, job.adapter);
  if (model.exceeds_bytes) model.text_tokenizer();  // throws
  for (const std::string& setting : job.overrides)
    if (setting.starts_with("tokenizer"))
      throw UserError(fmt::format("`{}` has no effect on an evaluation", setting),
                      "give --tokenizer <tokenizer.json>");
  const int64_t ranks = job.world ? job.world->size() : job.job.size;
  std::vector<std::string> overrides = job.overrides;
  if (model.merged) overrides.emplace_back("peft.dim=0");
  const RunPlan plan = plan::saved_run_plan(interchange::model_source(), model.recipe, overrides,
                                            ranks, model.saved.model.vocab);
  comm::World world =
      job.world ? *job.world
                : open_world(plan::meeting_plan(plan), job.job,
                             token_source(job.job, token_file_beside(job.model, job.job)));
  if (world.rank() == 0) report(model);
  try {
    return evaluate_on(world, job, plan, model);
  } catch (const std::exception& e) {
    world.abort(e.what());  // peers then do not wait for this rank
    throw;
  }
}

}  // namespace mtrain::run
