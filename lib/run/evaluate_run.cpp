#include "run/evaluate_run.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "checkpoint/train_checkpoint.h"
#include "data/dataset/strided_dataset.h"
#include "plan/saved_recipe.h"
#include "run/open_device.h"
#include "run/run_checkpoint.h"
#include "run/run_folder.h"
#include "train/build_trainer.h"
#include "train/data_setup.h"

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

// Adds the tokens [first, end), and the bytes of their text. A token's text may depend on the token
// before it, which is decoded with it and taken off again.
void count(const data::IndexedDataset& tokens, int64_t first, int64_t end,
           const data::Tokenizer& tokenizer, Evaluation& e) {
  e.tokens += end - first;
  std::vector<int32_t> ids(size_t(end - first + 1));
  tokens.read(first - 1, ids);
  const bool with_text = tokenizer.eod() != ids[0];
  const std::vector<int32_t> before(ids.begin(), ids.begin() + (with_text ? 1 : 0));
  std::erase_if(ids, [&](int32_t id) { return tokenizer.eod() == id; });
  e.bytes += int64_t(tokenizer.decode(ids).size()) - int64_t(tokenizer.decode(before).size());
}

// Adds the tokens that have a loss: of each window the runs of tokens that count as labels.
void count(const data::StridedDataset& windows, const data::Tokenizer& tokenizer, Evaluation& e) {
  const data::IndexedDataset& tokens = windows.tokens();
  for (int64_t i = 0; i < windows.size(); ++i) {
    const auto [first, end] = windows.counted(i);
    for (int64_t from = first, to = first; from < end; from = to + 1) {
      for (to = from; to < end && tokens.counts(to); ++to) continue;
      if (from < to) count(tokens, from, to, tokenizer, e);
    }
  }
}

Evaluation evaluate_on(comm::World world, const EvaluateJob& job, const RunPlan& plan,
                       const data::Tokenizer& tokenizer, const std::filesystem::path& checkpoint) {
  const auto windows = open_windows(job, plan);
  Evaluation e{.windows = windows->size(),
               .window = plan.sample_length,
               .stride = job.stride ? job.stride : plan.sample_length};
  count(*windows, tokenizer, e);
  const auto device = open_device(plan.device, job.job);
  train::Trainer trainer = train::build_trainer(*device, plan, windows, std::move(world));
  resume_run(trainer, checkpoint);
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

Evaluation evaluate_run(const EvaluateJob& job) {
  const IgnoreSigpipe pipes;
  const auto found = locate_checkpoint(job.model);
  if (!found)
    throw UserError(fmt::format("{} holds no complete checkpoint", job.model),
                    "give a run folder or a checkpoint folder");
  const auto recipe = checkpoint::recipe_file(found->path);
  const plan::TokenizerOptions tokenizer = plan::read_saved_run(recipe).tokenizer;
  const int64_t vocab = train::vocabulary(tokenizer);
  const RunPlan plan = plan::saved_run_plan(recipe, job.overrides, job.job.size, vocab);
  comm::World world = open_world(plan, job.job);
  try {
    return evaluate_on(world, job, plan, *train::open_tokenizer(tokenizer), found->path);
  } catch (const std::exception& e) {
    world.abort(e.what());  // so that peers do not wait for this rank
    throw;
  }
}

}  // namespace mtrain::run
