#include "run/evaluate_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "data/dataset/strided_dataset.h"
#include "run/open_device.h"
#include "run/stored_model.h"
#include "train/build_trainer.h"

namespace mtrain::run {

namespace {

std::shared_ptr<const data::StridedDataset> open_windows(const EvaluateJob& job,
                                                         const RunPlan& plan) {
  for (const auto& file : {data::bin_path(job.data), data::idx_path(job.data)})
    if (!std::filesystem::exists(file))
      throw UserError(fmt::format("--data: there is no {}", file.string()),
                      "name the prefix of a .bin/.idx pair; `mtrain data build --input <text> "
                      "--output <prefix>` makes one");
  return std::make_shared<data::StridedDataset>(
      std::make_shared<data::IndexedDataset>(job.data),
      data::StridedDatasetOptions{.window = plan.sample_length,
                                  .stride = job.stride ? job.stride : plan.sample_length,
                                  .vocab_size = plan.model.vocab,
                                  .packed = plan.dataset.packed_size > 0});
}

// Whether a token begins or ends documents, and so is none of their text.
bool frames_text(const data::Tokenizer& tokenizer, int32_t id) {
  const auto prefix = tokenizer.text_prefix();
  return tokenizer.eod() == id || tokenizer.bos() == id ||
         std::ranges::find(prefix, id) != prefix.end();
}

// Returns the bytes of the text of tokens [first, end). A token's text may depend on the token
// before it, which is decoded with it and taken off again. Documents are decoded one by one, since
// the first token of a text may have another text than later ones.
int64_t bytes_of(const data::IndexedDataset& tokens, int64_t first, int64_t end,
                 const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids(size_t(end - first + 1));
  tokens.read(first - 1, ids);
  int64_t bytes = 0;
  std::vector<int32_t> document;
  const auto add = [&] {
    bytes += int64_t(tokenizer.decode(document).size());
    document.clear();
  };
  if (!frames_text(tokenizer, ids[0])) bytes -= int64_t(tokenizer.decode({ids.data(), 1}).size());
  for (const int32_t id : ids) {
    if (!frames_text(tokenizer, id))
      document.push_back(id);
    else
      add();
  }
  add();
  return bytes;
}

// Adds the tokens that have a loss, of each window the runs of tokens that count as labels, and the
// bytes of their text where there is a tokenizer.
void count(const data::StridedDataset& windows, const data::Tokenizer* tokenizer, Evaluation& e) {
  const data::IndexedDataset& tokens = windows.tokens();
  for (int64_t i = 0; i < windows.size(); ++i) {
    const auto [first, end] = windows.counted(i);
    for (int64_t from = first, to = first; from < end; from = to + 1) {
      for (to = from; to < end && tokens.counts(to); ++to) continue;
      e.tokens += to - from;
      if (tokenizer && from < to) e.bytes += bytes_of(tokens, from, to, *tokenizer);
    }
  }
}

Evaluation evaluate_on(comm::World world, const EvaluateJob& job, const RunPlan& plan,
                       const StoredModel& model) {
  const auto windows = open_windows(job, plan);
  Evaluation e{.windows = windows->size(),
               .window = plan.sample_length,
               .stride = job.stride ? job.stride : plan.sample_length};
  const auto device = open_device(plan.device, job.job);
  train::Trainer trainer = train::build_trainer(*device, plan, windows, std::move(world));
  load_model(trainer, model);
  const data::ValidationLoader loader(windows, 0,
                                      {.micro_batch = plan.layout.micro_batch,
                                       .dp_rank = trainer.data_parallel().rank(),
                                       .dp_size = trainer.data_parallel().size()});
  e.nats_per_token = trainer.evaluate(loader);
  if (!std::isfinite(e.nats_per_token))
    throw RunError(
        fmt::format("the mean loss of {} on {} is {}", job.model, job.data, e.nats_per_token),
        "a weight is not finite, or a value overflows its type");
  // Behind the evaluation, which has refused ids that are none of the model's.
  count(*windows, model.tokenizer.get(), e);
  trainer.control().any(false);  // rank 0 serves the store, so it must end last
  return e;
}

}  // namespace

double Evaluation::perplexity() const { return std::exp(nats_per_token); }
double Evaluation::bits_per_byte() const {
  return bytes ? nats_per_token * double(tokens) / std::numbers::ln2 / double(bytes) : 0;
}

Evaluation evaluate_model(const EvaluateJob& job) {
  const IgnoreSigpipe pipes;
  const StoredModel model = open_model(job.model, job.machine);
  const int64_t ranks = job.world ? job.world->size() : job.job.size;
  const RunPlan plan =
      plan::saved_run_plan(model.recipe, job.overrides, ranks, model.saved.model.vocab);
  comm::World world = job.world ? *job.world : open_world(plan, job.job);
  if (world.rank() == 0) report(model);
  try {
    return evaluate_on(world, job, plan, model);
  } catch (const std::exception& e) {
    world.abort(e.what());  // so that peers do not wait for this rank
    throw;
  }
}

}  // namespace mtrain::run
