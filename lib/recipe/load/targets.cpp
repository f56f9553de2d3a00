#include "recipe/load/targets.h"

#include <algorithm>

#include "recipe/load/sample_targets.h"
#include "recipe/model_source.h"

namespace mtrain::recipe {
namespace {

// The defaults of the optimizers' arguments, for those that a recipe leaves out.
const std::vector<FieldText> kTorchAdamW{{"optimizer.lr", "1e-3"},
                                         {"optimizer.betas", "[0.9, 0.999]"},
                                         {"optimizer.eps", "1e-8"},
                                         {"optimizer.weight_decay", "0.01"},
                                         {"optimizer.decoupled_weight_decay", "true"}};
// torch's Adam adds the weight decay to the gradient.
const std::vector<FieldText> kTorchAdam{{"optimizer.lr", "1e-3"},
                                        {"optimizer.betas", "[0.9, 0.999]"},
                                        {"optimizer.eps", "1e-8"},
                                        {"optimizer.weight_decay", "0"},
                                        {"optimizer.decoupled_weight_decay", "false"}};
const std::vector<FieldText> kFusedAdam{{"optimizer.lr", "1e-3"},
                                        {"optimizer.betas", "[0.9, 0.999]"},
                                        {"optimizer.eps", "1e-8"},
                                        {"optimizer.weight_decay", "0"},
                                        {"optimizer.decoupled_weight_decay", "true"}};

const std::vector<FieldText> kTorchMuon{{"optimizer.lr", "1e-3"},
                                        {"optimizer.weight_decay", "0.1"}};
const std::vector<FieldText> kDionMuon{
    {"optimizer.lr", "1e-2"},
    {"optimizer.betas", "[0.9, 0.95]"},
    {"optimizer.weight_decay", "0.01"},
    {"optimizer.muon.nesterov", "false"},
    {"optimizer.muon.scale_mode", "spectral_norm"},
    {"optimizer.muon.coefficients",
     "[4.0848, -6.8946, 2.9270, 3.9505, -6.3029, 2.6377, 3.7418, -5.5913, 2.3037, "
     "2.8769, -3.1427, 1.2046, 2.8366, -3.0525, 1.2012]"}};

const std::vector<Target> kTargets{
    {.section = "optimizer",
     .name = "optim.AdamW",
     .sets = {{"optimizer.name", "adamw"}},
     .defaults = kTorchAdamW},
    {.section = "optimizer",
     .name = "optim.Adam",
     .sets = {{"optimizer.name", "adam"}},
     .defaults = kTorchAdam},
    // Its argument adam_w_mode, true by default, means decoupled_weight_decay.
    {.section = "optimizer",
     .name = "FusedAdam",
     .sets = {{"optimizer.name", "adam"}},
     .defaults = kFusedAdam},
    {.section = "optimizer",
     .name = "flashoptim.FlashAdamW",
     .sets = {{"optimizer.name", "adamw"}, {"optimizer.moments", "bf16"}},
     .defaults = kTorchAdamW,
     .warning = "keeps its moments in 8 bits; here they are bf16, the nearest type"},
    {.section = "optimizer",
     .name = "optim.Muon",
     .sets = {{"optimizer.name", "muon"}},
     .defaults = kTorchMuon,
     .arguments = {{"optimizer.eps", "optimizer.muon.eps"}}},
    {.section = "optimizer",
     .name = "dion.Muon",
     .sets = {{"optimizer.name", "muon"}},
     .defaults = kDionMuon},
    {.section = "model", .name = "NeMoAutoModelForCausalLM.from_pretrained"},
    {.section = "model", .name = "AutoModelForCausalLM.from_pretrained"},
    {.section = "model",
     .name = "NeMoAutoModelForCausalLM.from_config",
     .sets = {{"model.init", "random"}}},
    {.section = "model",
     .name = "AutoModelForCausalLM.from_config",
     .sets = {{"model.init", "random"}}},
    {.section = "model.backend", .name = "BackendConfig"},
    {.section = "model.config", .name = "AutoConfig.from_pretrained"},
    {.section = "dataset",
     .name = "megatron_dataset.MegatronPretraining",
     .defaults = {{"dataset.split", "[900, 50, 50]"}}},
    {.section = "validation_dataset",
     .name = "megatron_dataset.MegatronPretraining",
     .defaults = {{"dataset.validation_split", "[900, 50, 50]"}}},
    {.section = "dataset.tokenizer", .name = "AutoTokenizer.from_pretrained"},
    {.section = "dataset.tokenizer", .name = "NeMoAutoTokenizer.from_pretrained"},
    {.section = "tokenizer", .name = "AutoTokenizer.from_pretrained"},
    {.section = "tokenizer", .name = "NeMoAutoTokenizer.from_pretrained"},
    {.section = "distributed", .name = "FSDP2Manager", .sets = {{"distributed.strategy", "fsdp2"}}},
    {.section = "distributed", .name = "FSDP2Config", .sets = {{"distributed.strategy", "fsdp2"}}},
    {.section = "distributed",
     .name = "MegatronFSDPManager",
     .sets = {{"distributed.strategy", "megatron_fsdp"}}},
    {.section = "distributed",
     .name = "MegatronFSDPConfig",
     .sets = {{"distributed.strategy", "megatron_fsdp"}}},
    {.section = "distributed", .name = "DDPManager", .sets = {{"distributed.strategy", "ddp"}}},
    {.section = "distributed", .name = "DDPConfig", .sets = {{"distributed.strategy", "ddp"}}},
    {.section = "distributed.mp_policy", .name = "MixedPrecisionPolicy"},
    {.section = "distributed.pipeline", .name = "PipelineConfig"},
    {.section = "distributed.pipeline", .name = "AutoPipeline"},
    {.section = "distributed.moe", .name = "MoEParallelizerConfig"},
    {.section = "peft", .name = "lora.PeftConfig"},
    {.section = "peft", .name = "lora.LoRA"},
    {.section = "loss_fn", .name = "MaskedCrossEntropy"},
    {.section = "loss_fn", .name = "FusedLinearCrossEntropy"},
    {.section = "loss_fn", .name = "ChunkedCrossEntropy"},
    {.section = "loss_fn", .name = "TEParallelCrossEntropy"},
    {.section = "loss_fn", .name = "nn.CrossEntropyLoss"},
    {.section = "rng", .name = "StatefulRNG"},
    {.section = "lr_scheduler", .name = "OptimizerParamScheduler"},
    {.section = "checkpoint", .name = "CheckpointingConfig"},
    {.section = "step_scheduler", .name = "StepScheduler"},
};

// Whether the last parts of `class_path`, between dots, are those of `name`.
bool ends_with_words(std::string_view class_path, std::string_view name) {
  if (!class_path.ends_with(name)) return false;
  const size_t before = class_path.size() - name.size();
  return before == 0 || class_path[before - 1] == '.';
}

// Whether the class is the target's. AutoModel also has classes whose names end in Config.
bool is_class_of(std::string_view class_path, std::string_view target) {
  if (ends_with_words(class_path, target)) return true;
  if (class_path.ends_with("Config")) class_path.remove_suffix(6);
  return ends_with_words(class_path, target);
}

}  // namespace

const Target* find_target(const ModelSource& models, std::string_view section,
                          std::string_view class_path) {
  const auto find = [&](std::span<const Target> targets) {
    const auto found = std::ranges::find_if(targets, [&](const Target& t) {
      return t.section == section && is_class_of(class_path, t.name);
    });
    return found == targets.end() ? nullptr : &*found;
  };
  for (const std::span<const Target> targets :
       {std::span<const Target>(kTargets), sample_targets()})
    if (const Target* target = find(targets)) return target;
  return find(models.targets());
}

bool is_megatron_class(std::string_view class_path) {
  return class_path.starts_with("megatron.bridge.") || class_path.starts_with("megatron.core.");
}

std::optional<Architecture> megatron_architecture(const ModelSource& models,
                                                  std::string_view class_path) {
  if (const auto family = models.megatron_family(class_path)) return family;
  if (class_path.find("GPTModelProvider") == std::string_view::npos) return std::nullopt;
  return ModelConfig().architecture;
}

std::string native_way(std::string_view section) {
  struct Row {
    std::string_view section, text;
  };
  static constexpr Row kRows[] = {
      {"optimizer", "write optimizer.name: adamw, adam or muon, and its fields"},
      {"model", "write model.architecture and its sizes, or model.from: a Hugging Face folder"},
      {"model.config", "write model.from: a Hugging Face folder, or model.architecture and sizes"},
      {"dataset", "tokenize the text with `mtrain data build`, and name it in dataset.train"},
      {"validation_dataset",
       "tokenize the text with `mtrain data build`, and name it in dataset.validation"},
      {"tokenizer", "name the model's tokenizer.json in tokenizer.path"},
      {"dataset.tokenizer", "name the model's tokenizer.json in tokenizer.path"},
      {"distributed", "write distributed.strategy: fsdp2, megatron_fsdp, megatron_ddp or ddp"},
      {"loss_fn", "leave it out: the loss is next-token cross entropy"},
      {"lr_scheduler", "write lr_scheduler.style: cosine, linear, constant or wsd"}};
  const auto row = std::ranges::find(kRows, section, &Row::section);
  return std::string(
      row == std::end(kRows)
          ? "leave it out, and write the section's fields; `mtrain schema` lists them"
          : row->text);
}

}  // namespace mtrain::recipe
