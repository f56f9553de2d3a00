#include "run/loaded_model.h"

#include "comm/host_collectives.h"
#include "parallel/apply_parallelism.h"
#include "run/open_device.h"

namespace mtrain::run {

namespace {

model::ModelImpls impls_of(comm::World& world, device::Device& device, const spec::ModelSpec& spec,
                           const train::RouterState& routers,
                           const generate::KeyValueCache& cache) {
  model::ModelImpls impls = parallel::share_layers(world, device, spec);
  impls.router_bias_LE = routers.bias_LE();
  impls.attention_core = cache.cores();
  impls.latent_core = cache.latent_cores();
  return impls;
}

}  // namespace

struct LoadedModel::State {
  State(comm::World& world, const launch::Job& job, const StoredModel& stored, int64_t slots,
        int64_t positions)
      : device(open_device(stored.saved.device, job)),
        stream(device->stream(device::StreamKind::compute)),
        routers(stream, stored.saved.model),
        cache(slots, positions),
        model(stream, params, stored.saved.model, positions, {},
              impls_of(world, *device, stored.saved.model, routers, cache)),
        cached(stream, model, cache) {}

  std::unique_ptr<device::Device> device;
  Stream& stream;
  const train::RouterState routers;
  generate::KeyValueCache cache;
  model::ParamStore params;
  model::Gpt model;
  generate::CachedModel cached;
};

LoadedModel::LoadedModel(comm::World& world, const launch::Job& job, const StoredModel& stored,
                         DType dtype, int64_t slots, int64_t positions)
    : state_(std::make_unique<State>(world, job, stored, slots, positions)) {
  State& s = *state_;
  if (world.size() > 1) require_same_model(comm::HostCollectives(world, *s.device), stored);
  s.params.materialize(s.stream, dtype, false);
  load_weights(s.stream, s.params, s.routers, stored, world.rank());
}

LoadedModel::~LoadedModel() = default;

generate::CachedModel& LoadedModel::cached() { return state_->cached; }

}  // namespace mtrain::run
