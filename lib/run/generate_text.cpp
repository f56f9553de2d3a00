#include "run/generate_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "run/loaded_model.h"
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
                              .job = job.name,
                              .served = job.served,
                              .served_at = job.served_at,
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
  const std::vector<generate::Request> requests = requests_of(job);
  const auto slots = std::clamp<int64_t>(int64_t(requests.size()), 1, job.batch);
  // A model's context may need more memory than there is. The cache has room only for the longest
  // request.
  const int64_t positions = generate::longest(tokenizer, requests, options);
  LoadedModel model(world, job.job, stored, job.dtype, slots, positions);
  generate::generate(model.cached(), tokenizer, requests, options, listener);
}

}  // namespace

int64_t generate_text(const GenerateJob& job, generate::GenerateOptions options,
                      const generate::Listener& listener) {
  const IgnoreSigpipe pipes;
  const StoredModel stored = open_model(job.model, job.machine, job.tokenizer, job.adapter);
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
