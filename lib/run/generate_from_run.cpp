#include "run/generate_from_run.h"

#include "base/error.h"
#include "checkpoint/train_checkpoint.h"
#include "plan/saved_recipe.h"
#include "run/open_device.h"
#include "run/run_folder.h"
#include "train/data_setup.h"
#include "train/model_setup.h"
#include "train/router_state.h"

namespace mtrain::run {

void generate_from_run(const std::string& run, std::string_view prompt,
                       generate::GenerateOptions options,
                       const std::function<void(std::string_view)>& emit) {
  const auto found = locate_checkpoint(run);
  if (!found)
    throw UserError(fmt::format("{} holds no complete checkpoint", run),
                    "give a run folder or a checkpoint folder");
  plan::SavedRun saved = plan::read_saved_run(checkpoint::recipe_file(found->path));
  const auto tokenizer = train::open_tokenizer(saved.tokenizer);
  const auto device = open_device(saved.device, {});
  Stream& stream = device->stream(device::StreamKind::compute);
  saved.model.vocab = train::vocabulary(saved.tokenizer);
  const train::RouterState routers(stream, saved.model);
  std::vector<checkpoint::ReplicatedTensor> of_model;
  for (const checkpoint::ReplicatedTensor& r : routers.tensors())
    if (r.of_model) of_model.push_back(r);
  model::ModelImpls impls;
  impls.router_bias_LE = routers.bias_LE();
  model::ParamStore params;
  model::Gpt model(stream, params, train::gpt_config(saved.model), saved.sample_length, {}, impls);
  params.materialize(stream, DType::f32, false);
  checkpoint::load_weights(stream, params, of_model, found->path);
  options.window = saved.sample_length;
  generate::generate(stream, model, *tokenizer, prompt, options, emit);
}

}  // namespace mtrain::run
