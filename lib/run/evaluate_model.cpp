#include "run/evaluate_model.h"

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

// Returns the bytes of the text of tokens [first, end). A token's text may depend on the token
// before it, which is decoded with it and taken off again.
int64_t bytes_of(const data::IndexedDataset& tokens, int64_t first, int64_t end,
                 const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids(size_t(end - first + 1));
  tokens.read(first - 1, ids);
  const bool with_text = tokenizer.eod() != ids[0];
  const std::vector<int32_t> before(ids.begin(), ids.begin() + (with_text ? 1 : 0));
  std::erase_if(ids, [&](int32_t id) { return tokenizer.eod() == id; });
  return int64_t(tokenizer.decode(ids).size()) - int64_t(tokenizer.decode(before).size());
}

// Adds the tokens that have a loss, and the bytes of their text where there is a tokenizer.
void count(const data::StridedDataset& windows, const data::Tokenizer* tokenizer, Evaluation& e) {
  for (int64_t i = 0; i < windows.size(); ++i) {
    const auto [first, end] = windows.counted(i);
    e.tokens += end - first;
    if (tokenizer && first < end) e.bytes += bytes_of(windows.tokens(), first, end, *tokenizer);
  }
}

Evaluation evaluate_on(comm::World world, const EvaluateJob& job, const RunPlan& plan,
                       const StoredModel& model) {
  const auto windows = open_windows(job, plan);
  Evaluation e{.windows = windows->size(),
               .window = plan.sample_length,
               .stride = job.stride ? job.stride : plan.sample_length};
  count(*windows, model.tokenizer.get(), e);
  const auto device = open_device(plan.device, job.job);
  train::Trainer trainer = train::build_trainer(*device, plan, windows, std::move(world));
  load_model(trainer, model);
  const data::ValidationLoader loader(windows, 0,
                                      {.micro_batch = plan.layout.micro_batch,
                                       .dp_rank = trainer.data_parallel().rank(),
                                       .dp_size = trainer.data_parallel().size()});
  e.nats_per_token = trainer.evaluate(loader);
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
  try {
    return evaluate_on(world, job, plan, model);
  } catch (const std::exception& e) {
    world.abort(e.what());  // so that peers do not wait for this rank
    throw;
  }
}

}  // namespace mtrain::run
