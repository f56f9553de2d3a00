#include "recipe/load/targets.h"

#include <algorithm>

namespace mtrain::recipe {
namespace {

// The arguments that these optimizers take when a recipe leaves them out.
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
    // Its argument adam_w_mode, true by default, is another name of decoupled_weight_decay.
    {.section = "optimizer",
     .name = "FusedAdam",
     .sets = {{"optimizer.name", "adam"}},
     .defaults = kFusedAdam},
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
    {.section = "model",
     .name = "models.gpt2.build_gpt2_model",
     .sets = {{"model.architecture", "gpt2"}},
     .defaults = {{"model.vocab_size", "50257"},
                  {"model.max_position_embeddings", "2048"},
                  {"model.hidden_size", "768"},
                  {"model.num_layers", "12"},
                  {"model.num_attention_heads", "12"}}},
    {.section = "model.backend", .name = "BackendConfig"},
    {.section = "model.config", .name = "AutoConfig.from_pretrained"},
    {.section = "model.config", .name = "LlamaConfig", .sets = {{"model.architecture", "llama"}}},
    {.section = "model.config", .name = "Qwen2Config", .sets = {{"model.architecture", "qwen2"}}},
    {.section = "model.config", .name = "Qwen3Config", .sets = {{"model.architecture", "qwen3"}}},
    {.section = "model.config",
     .name = "MistralConfig",
     .sets = {{"model.architecture", "mistral"}}},
    {.section = "model.config", .name = "GPT2Config", .sets = {{"model.architecture", "gpt2"}}},
    {.section = "model.config",
     .name = "MixtralConfig",
     .sets = {{"model.architecture", "mixtral"}}},
    {.section = "model.config",
     .name = "Qwen2MoeConfig",
     .sets = {{"model.architecture", "qwen2_moe"}}},
    {.section = "model.config",
     .name = "Qwen3MoeConfig",
     .sets = {{"model.architecture", "qwen3_moe"}}},
    {.section = "dataset", .name = "megatron_dataset.MegatronPretraining"},
    {.section = "validation_dataset", .name = "megatron_dataset.MegatronPretraining"},
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

// Whether the last words of `class_path` are those of `name`.
bool ends_with_words(std::string_view class_path, std::string_view name) {
  if (!class_path.ends_with(name)) return false;
  const size_t before = class_path.size() - name.size();
  return before == 0 || class_path[before - 1] == '.';
}

}  // namespace

const Target* find_target(std::string_view section, std::string_view class_path) {
  const auto found = std::ranges::find_if(kTargets, [&](const Target& t) {
    return t.section == section && ends_with_words(class_path, t.name);
  });
  return found == kTargets.end() ? nullptr : &*found;
}

bool is_megatron_class(std::string_view class_path) {
  return class_path.starts_with("megatron.bridge.") || class_path.starts_with("megatron.core.");
}

const char* megatron_architecture(std::string_view class_path) {
  struct Family {
    std::string_view word;
    const char* architecture;
  };
  // The first whose word is in the name, so Qwen3MoE stands before Qwen3.
  static constexpr Family kFamilies[] = {{"Qwen3MoE", "qwen3_moe"}, {"Qwen2MoE", "qwen2_moe"},
                                         {"Mixtral", "mixtral"},    {"Qwen3", "qwen3"},
                                         {"Qwen2", "qwen2"},        {"Mistral", "mistral"},
                                         {"Llama", "llama"},        {"GPTModelProvider", "llama"}};
  for (const Family& family : kFamilies)
    if (class_path.find(family.word) != std::string_view::npos) return family.architecture;
  return nullptr;
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
