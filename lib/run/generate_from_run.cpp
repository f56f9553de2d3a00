#include "run/generate_from_run.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/ignore_sigpipe.h"
#include "checkpoint/train_checkpoint.h"
#include "comm/process/process_world.h"
#include "parallel/apply_parallelism.h"
#include "plan/saved_recipe.h"
#include "run/open_device.h"
#include "run/run_folder.h"
#include "train/data_setup.h"
#include "train/model_setup.h"
#include "train/router_state.h"

namespace mtrain::run {

namespace {

comm::World connect(const launch::Job& job, DeviceKind device, const std::string& recipe) {
  if (job.size == 1) return comm::World::alone();
  return comm::process_world({.rank = job.rank,
                              .size = job.size,
                              .restarts = job.restarts,
                              .master_addr = job.master_addr,
                              .master_port = job.master_port,
                              .device = device,
                              .device_number = job.local_rank,
                              .recipe = recipe});
}

std::vector<generate::Request> requests_of(const GenerateJob& job) {
  std::vector<generate::Request> requests;
  for (const std::string& prompt : job.prompts)
    for (int64_t n = 0; n < job.num; ++n) requests.push_back({prompt, uint64_t(requests.size())});
  return requests;
}

int64_t generate_on(comm::World& world, const GenerateJob& job, plan::SavedRun saved,
                    const std::filesystem::path& checkpoint, generate::GenerateOptions options,
                    const generate::Listener& listener) {
  const auto tokenizer = train::open_tokenizer(saved.tokenizer);
  const auto device = open_device(saved.device, job.job);
  Stream& stream = device->stream(device::StreamKind::compute);
  saved.model.vocab = train::vocabulary(saved.tokenizer);
  const train::RouterState routers(stream, saved.model);
  std::vector<checkpoint::ReplicatedTensor> of_model;
  for (const checkpoint::ReplicatedTensor& r : routers.tensors())
    if (r.of_model) of_model.push_back(r);

  const std::vector<generate::Request> requests = requests_of(job);
  options.context = saved.sample_length;
  const auto slots = std::clamp<int64_t>(int64_t(requests.size()), 1, job.batch);
  generate::KeyValueCache cache(slots, options.context);
  model::ModelImpls impls = parallel::share_layers(world, *device, saved.model);
  impls.router_bias_LE = routers.bias_LE();
  impls.attention_core = cache.cores();
  model::ParamStore params;
  model::Gpt model(stream, params, train::gpt_config(saved.model, world.size()), options.context,
                   {}, impls);
  params.materialize(stream, job.dtype, false);
  checkpoint::load_weights(stream, params, of_model, checkpoint);
  generate::CachedModel cached(stream, model, cache);
  generate::generate(cached, *tokenizer, requests, options, listener);
  return options.context;
}

}  // namespace

int64_t generate_from_run(const GenerateJob& job, generate::GenerateOptions options,
                          const generate::Listener& listener) {
  const IgnoreSigpipe pipes;
  const auto found = locate_checkpoint(job.run);
  if (!found)
    throw UserError(fmt::format("{} holds no complete checkpoint", job.run),
                    "give a run folder or a checkpoint folder");
  const auto recipe = checkpoint::recipe_file(found->path);
  const plan::SavedRun saved = plan::read_saved_run(recipe);
  comm::World world = connect(job.job, saved.device.kind, read_file(recipe.string()));
  try {
    return generate_on(world, job, saved, found->path, std::move(options), listener);
  } catch (const std::exception& e) {
    world.abort(e.what());  // so that peers do not wait for this rank
    throw;
  }
}

}  // namespace mtrain::run
