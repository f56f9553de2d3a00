#include "run/generate_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "comm/host_collectives.h"
#include "parallel/apply_parallelism.h"
#include "run/open_device.h"
#include "run/stored_model.h"

namespace mtrain::run {

namespace {

comm::World connect(const GenerateJob& generate, DeviceKind device, const std::string& recipe) {
  const launch::Job& job = generate.job;
  if (job.size == 1) return comm::World::alone();
  return comm::process_world({.rank = job.rank,
                              .size = job.size,
                              .local_size = job.local_size,
                              .restarts = job.restarts,
                              .master_addr = job.master_addr,
                              .master_port = job.master_port,
                              .token = token_source(job, token_file_beside(generate.model, job)),
                              .device = device,
                              .device_number = job.local_rank,
                              .recipe = recipe});
}

std::vector<generate::Request> requests_of(const GenerateJob& job) {
  std::vector<generate::Request> requests;
  for (size_t i = 0; i < job.prompts.size(); ++i)
    for (int64_t n = 0; n < job.num; ++n) {
      requests.push_back({job.prompts[i], uint64_t(requests.size())});
      if (!job.names.empty()) requests.back().name = job.names.at(i);
    }
  return requests;
}

void generate_on(comm::World& world, const GenerateJob& job, const StoredModel& stored,
                 const data::Tokenizer& tokenizer, const generate::GenerateOptions& options,
                 const generate::Listener& listener) {
  const auto device = open_device(stored.saved.device, job.job);
  Stream& stream = device->stream(device::StreamKind::compute);
  const spec::ModelSpec& spec = stored.saved.model;
  const train::RouterState routers(stream, spec);

  const std::vector<generate::Request> requests = requests_of(job);
  const auto slots = std::clamp<int64_t>(int64_t(requests.size()), 1, job.batch);
  // A model's context may need more memory than there is. The cache has room only for the longest
  // request.
  const int64_t positions = generate::longest(tokenizer, requests, options);
  generate::KeyValueCache cache(slots, positions);
  model::ModelImpls impls = parallel::share_layers(world, *device, spec);
  impls.router_bias_LE = routers.bias_LE();
  impls.attention_core = cache.cores();
  model::ParamStore params;
  model::Gpt model(stream, params, spec, positions, {}, impls);
  if (world.size() > 1) require_same_model(comm::HostCollectives(world, *device), stored);
  params.materialize(stream, job.dtype, false);
  load_weights(stream, params, routers, stored, world.rank());
  generate::CachedModel cached(stream, model, cache);
  generate::generate(cached, tokenizer, requests, options, listener);
}

}  // namespace

int64_t generate_text(const GenerateJob& job, generate::GenerateOptions options,
                      const generate::Listener& listener) {
  const IgnoreSigpipe pipes;
  const StoredModel stored = open_model(job.model, job.machine, job.tokenizer);
  const data::Tokenizer& tokenizer = stored.text_tokenizer();
  options.context = stored.context();
  for (const int32_t id : stored.end_ids()) options.eos.push_back(id);
  comm::World world =
      job.world ? *job.world : connect(job, stored.saved.device.kind, stored.recipe.read());
  if (world.rank() == 0) report(stored);
  try {
    generate_on(world, job, stored, tokenizer, options, listener);
  } catch (const std::exception& e) {
    world.abort(e.what());  // peers then do not wait for this rank
    throw;
  }
  return options.context;
}

}  // namespace mtrain::run
