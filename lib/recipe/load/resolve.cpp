// Derives values that follow from other fields. Each is marked as derived in the printed recipe.
#include <glob.h>
#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/core.h>

#include "base/error.h"
#include "base/math.h"
#include "recipe/load/automodel.h"
#include "recipe/load/resolve.h"
#include "recipe/load/resolve_foreign.h"
#include "recipe/recipe.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {

int64_t ModelConfig::ffn_size() const {
  return ffn_hidden_size.value_or(gated() ? round_up(ceil_div(8 * hidden_size, 3), 64)
                                          : 4 * hidden_size);
}

// Peng et al. 2023, "YaRN", section 3.4, with mscale and mscale_all_dim as in DeepSeek-V2; Ding et
// al. 2024, "LongRoPE".
double RopeScalingConfig::attention_scale(int64_t max_positions) const {
  if (type != RopeScalingType::yarn && type != RopeScalingType::longrope) return 1;
  if (attention_factor) return *attention_factor;
  if (type == RopeScalingType::longrope) {
    const auto original = double(original_max_position_embeddings);
    const double longer = double(max_positions) / original;
    return longer <= 1 ? 1 : std::sqrt(1 + std::log(longer) / std::log(original));
  }
  const auto grown = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
  const double over = mscale.value_or(0), under = mscale_all_dim.value_or(0);
  return over > 0 && under > 0 ? grown(over) / grown(under) : grown(1);
}

int64_t sample_length(const Recipe& r) {
  const int64_t packed = r.packed_sequence.packed_sequence_size;
  return packed > 0 ? packed : r.dataset.seq_length;
}

DataForm data_form(const Recipe& r) {
  if (r.dataset.form) return *r.dataset.form;
  if (r.packed_sequence.packed_sequence_size > 0) return DataForm::packed;
  const auto& format = r.dataset.train_samples.format;
  const bool rows = format == SampleFormat::messages || format == SampleFormat::prompt_completion;
  return rows ? DataForm::rows : DataForm::stream;
}

bool by_document(const Recipe& r) { return data_form(r) != DataForm::stream; }

namespace {

// Rows are tokenized by the tokenizer of the model that is fine-tuned.
void derive_tokenizer(Recipe& r, Diagnostics& diagnostics) {
  const auto reads = [](const SamplesConfig& s) {
    return s.format && *s.format != SampleFormat::mock;
  };
  if ((!reads(r.dataset.train_samples) && !reads(r.dataset.validation_samples)) ||
      r.given("tokenizer.type") || r.tokenizer.path || !r.model.from)
    return;
  r.tokenizer.path = *r.model.from;
  r.origins["tokenizer.path"] = Origin::derived;
  diagnostics.resolved("tokenizer.path", "that of model.from");
}

// Without a length a document may have as many tokens as the model has positions.
void derive_row_length(Recipe& r, Diagnostics& diagnostics) {
  const char* length = "dataset.seq_length";
  const auto& positions = r.model.max_position_embeddings;
  if (!by_document(r) || r.given(length) || !positions || *positions >= r.dataset.seq_length)
    return;
  r.dataset.seq_length = *positions;
  r.origins[length] = Origin::derived;
  diagnostics.resolved(length, fmt::format("{}, the positions of the model", *positions));
}

// If a recipe turns off the biases of a family that has them everywhere, qkv loses its bias, too.
void derive_biases(const ModelConfig& family, Recipe& r) {
  const char* qkv = "model.add_qkv_bias";
  if (!family.add_bias_linear || r.model.add_bias_linear || !r.given("model.add_bias_linear") ||
      r.given(qkv))
    return;
  r.model.add_qkv_bias = false;
  r.origins[qkv] = Origin::derived;
}

// Sets an optional field that has no value yet.
template <class T>
void derive(Recipe& r, const char* path, std::optional<T>& field, T value) {
  if (field) return;
  field = value;
  r.origins[path] = Origin::derived;
}

// Derives the precision from the type of the weights, if the recipe names only that.
void derive_precision(Recipe& r, Diagnostics& diagnostics) {
  const auto& policy = r.distributed.mp_policy.param_dtype;
  const auto& type = policy ? policy : r.mixed_precision.params_dtype;
  if (!type) return;
  const Precision name = *type == ElementType::fp32   ? Precision::fp32
                         : *type == ElementType::bf16 ? Precision::bf16_mixed
                                                      : Precision::fp16_mixed;
  if (name == r.mixed_precision.name) return;
  r.mixed_precision.name = name;
  r.origins["mixed_precision.name"] = Origin::derived;
  diagnostics.resolved("mixed_precision.name",
                       std::string(enum_name(name)) + ", because the weights' type is given");
}

// Derives grad_reduce_in_fp32 from mp_policy.reduce_dtype. Under fsdp2 gradients are reduced in the
// weights' type by default.
void derive_reduction(Recipe& r) {
  const auto& type = r.distributed.mp_policy.reduce_dtype;
  const bool fsdp2 = r.distributed.strategy == Strategy::fsdp2;
  if ((!type && !fsdp2) || r.given("mixed_precision.grad_reduce_in_fp32")) return;
  const bool fp32 = type ? *type == ElementType::fp32 : r.mixed_precision.name == Precision::fp32;
  if (fp32 == r.mixed_precision.grad_reduce_in_fp32) return;
  r.mixed_precision.grad_reduce_in_fp32 = fp32;
  r.origins["mixed_precision.grad_reduce_in_fp32"] = Origin::derived;
}

// Megatron's recipes do not name a strategy. Settings of its DDP select megatron_ddp.
void derive_strategy(Recipe& r, Diagnostics& diagnostics) {
  if (r.given("distributed.strategy")) return;
  std::string reason = r.sections.count("ddp") > 0 ? "there is a ddp section" : "";
  // Neither auto nor use_distributed_optimizer: false asks for a certain strategy.
  const auto asks = [&](const std::string& path) {
    const std::string value = find_row(path)->show(r);
    return value != "auto" && (path != "ddp.use_distributed_optimizer" || value == "true");
  };
  for (const auto& [path, spelling] : r.spellings)
    if (reason.empty() && path.starts_with("ddp.") && r.given(path) && asks(path) &&
        !spelling.starts_with("distributed."))
      reason = spelling + " is given";
  if (reason.empty()) return;
  r.distributed.strategy = Strategy::megatron_ddp;
  r.origins["distributed.strategy"] = Origin::derived;
  diagnostics.resolved("distributed.strategy", "megatron_ddp, because " + reason);
}

// Megatron's router_pre_softmax uses weights of the softmax over all experts without normalizing
// them. Hugging Face's norm_topk_prob: false is only possible with this softmax. Therefore, if only
// one of the two is set, it decides the other.
void derive_router(Recipe& r) {
  MoeConfig& moe = r.model.moe;
  if (moe.num_experts == 0) return;
  const char *pre = "model.moe.router_pre_softmax", *norm = "model.moe.norm_topk_prob";
  // Unlike given(), this also covers the folder of model.from.
  const auto said = [&](const char* path) { return r.spellings.contains(path); };
  if (moe.router_score == RouterScore::sigmoid) {
    // Megatron and DeepSeek-V3 normalize sigmoids, also in families that do not normalize softmax.
    if (!said(norm) && !moe.norm_topk_prob) {
      moe.norm_topk_prob = true;
      r.origins[norm] = Origin::derived;
    }
    return;
  }
  if (said(pre) == said(norm)) return;
  if (said(pre)) {
    if (moe.norm_topk_prob == moe.router_pre_softmax) r.origins[norm] = Origin::derived;
    moe.norm_topk_prob = !moe.router_pre_softmax;
  } else if (!moe.norm_topk_prob && !moe.router_pre_softmax) {
    moe.router_pre_softmax = true;
    r.origins[pre] = Origin::derived;
  }
}

// Megatron's aux_loss_coeff without a type means aux_loss, its default type. A list of the layers
// that have experts replaces the family's number of dense layers at the start.
void derive_experts(Recipe& r, Diagnostics& diagnostics) {
  MoeConfig& moe = r.model.moe;
  if (moe.num_experts == 0) return;
  const char *coeff = "model.moe.aux_loss_coeff", *type = "model.moe.load_balancing_type";
  const auto spelled = r.spellings.find(coeff);
  if (spelled != r.spellings.end() && spelled->second == "model.moe_aux_loss_coeff" &&
      !r.given(type) && moe.aux_loss_coeff.size() == 1 && moe.aux_loss_coeff[0] > 0) {
    moe.load_balancing_type = {LoadBalancing::aux_loss};
    r.origins[type] = Origin::derived;
    diagnostics.resolved(type, "aux_loss, because model.moe_aux_loss_coeff is given");
  }
  const char* dense = "model.moe.first_dense_layers";
  if (moe.layer_freq.size() > 1 && moe.first_dense_layers > 0 && !r.spellings.contains(dense)) {
    moe.first_dense_layers = 0;
    r.origins[dense] = Origin::derived;
  }
}

// AutoModel's strategies of packing leave out documents that are longer than a pack.
void derive_packing(Recipe& r, Diagnostics& diagnostics) {
  PackedSequenceConfig& p = r.packed_sequence;
  const char* drop = "packed_sequence.drop_long_samples";
  if (p.packing_strategy == PackingStrategy::first_fit || r.given(drop)) return;
  p.drop_long_samples = true;
  r.origins[drop] = Origin::derived;
  diagnostics.resolved(
      drop, fmt::format("true, because packing_strategy is {}", enum_name(p.packing_strategy)));
}

// Clips a warm-up that is longer than the run, such as a short trial, to all steps but one, and
// clips the decay of wsd. Does nothing if the recipe sets decay_steps.
void clip_schedule(Recipe& r, Diagnostics& diagnostics) {
  LrSchedulerConfig& s = r.lr_scheduler;
  if (s.decay_steps) return;  // derived from train.steps only later
  const int64_t steps = r.train.steps;
  const auto clip = [&](const char* path, int64_t& value, int64_t most) {
    if (value <= most) return;
    diagnostics.warn(
        path, fmt::format("{} is clipped to {}, since train.steps is {}", value, most, steps));
    value = most;
    r.origins[path] = Origin::derived;
  };
  if (s.style != LrStyle::constant)
    clip("lr_scheduler.warmup_steps", s.warmup_steps, std::max<int64_t>(0, steps - 1));
  if (s.style == LrStyle::wsd && s.wsd_decay_steps)
    clip("lr_scheduler.wsd_decay_steps", *s.wsd_decay_steps,
         std::max<int64_t>(1, steps - s.warmup_steps));
}

// Derives what follows from the number of steps.
void resolve_steps(Recipe& r, Diagnostics& diagnostics) {
  if (!r.steps_known()) return;
  derive_automodel_schedule(r, diagnostics);
  take_warmup_fraction(r, diagnostics);
  clip_schedule(r, diagnostics);
  derive(r, "lr_scheduler.decay_steps", r.lr_scheduler.decay_steps, r.train.steps);
}

}  // namespace

void resolve_epochs(Recipe& r, int64_t samples, Diagnostics& diagnostics) {
  MT_CHECK(!r.steps_known() && samples > 0, "{} samples, steps known", samples);
  const double epochs = *r.train.epochs, batch = double(r.train.global_batch_size);
  // An integer with a rounding error, such as 0.7 x 10, is not rounded up to one more step.
  constexpr double kRounding = 1e-12;
  // In AutoModel each epoch ends with a step of the samples that are left. Here that step is full,
  // so the run has as many steps, but some more samples.
  const bool whole = r.automodel && epochs == std::floor(epochs);
  const double exact = epochs * double(samples) / batch * (1 - kRounding);
  const double steps = whole ? epochs * double(ceil_div(samples, r.train.global_batch_size))
                             : std::max(1.0, std::ceil(exact));
  if (r.given("train.steps") && steps > double(r.train.steps)) {
    diagnostics.resolved("train.steps", fmt::format("{}, which are less than train.epochs={:g}",
                                                    r.train.steps, epochs));
    r.train.epochs.reset();
    r.origins.erase("train.epochs"), r.spellings.erase("train.epochs");
    return resolve_steps(r, diagnostics);
  }
  constexpr double kMaxSamples = 0x1p55;  // samples and their tokens are counted in 64 bits
  if (steps > double(kMaxSteps) || steps * batch > kMaxSamples)
    return diagnostics.add(
        "train.epochs",
        fmt::format("{:g} epochs of {} samples make {:.1e} steps, more than a run can count",
                    epochs, samples, steps),
        "train for fewer epochs");
  r.train.steps = int64_t(steps);
  r.epoch_samples =
      whole ? r.train.steps * r.train.global_batch_size
            : std::max<int64_t>(1, int64_t(std::ceil(epochs * double(samples) * (1 - kRounding))));
  r.origins["train.steps"] = Origin::derived;
  diagnostics.resolved(
      "train.steps", fmt::format("{}: train.epochs={:g} of {} samples, {} in a step", r.train.steps,
                                 epochs, samples, r.train.global_batch_size));
  resolve_steps(r, diagnostics);
}

namespace {
// Replaces a pattern of the shell by the pairs of .bin and .idx that it matches, in order. One that
// matches none stays, and is reported as a path that does not exist.
void expand_patterns(std::vector<std::string>& prefixes) {
  std::vector<std::string> expanded;
  for (const std::string& pattern : prefixes) {
    std::set<std::string> found;
    if (pattern.find_first_of("*?[") != std::string::npos)
      for (const char* ending : {"", ".bin"}) {
        glob_t matches = {};
        if (::glob((pattern + ending).c_str(), 0, nullptr, &matches) == 0)
          for (size_t i = 0; i < matches.gl_pathc; ++i) {
            const std::string path = matches.gl_pathv[i];
            if (path.ends_with(".bin")) found.insert(path.substr(0, path.size() - 4));
          }
        ::globfree(&matches);
      }
    if (found.empty())
      expanded.push_back(pattern);
    else
      expanded.insert(expanded.end(), found.begin(), found.end());
  }
  prefixes = std::move(expanded);
}

// Megatron's `split` cuts the validation data from the training data. AutoModel's recipes validate
// only if they have a validation_dataset.
void derive_split(Recipe& r, Diagnostics& diagnostics) {
  DatasetConfig& d = r.dataset;
  const auto read_whole = [&](const char* field, std::vector<double>& split) {
    if (split.empty()) return;
    split.clear();
    r.origins[field] = Origin::derived;
    diagnostics.resolved(field, "[]: `paths` names the data of each part, which are read whole");
  };
  if (r.written_as("dataset.train", "dataset.paths.train")) read_whole("dataset.split", d.split);
  if (r.written_as("dataset.validation", "validation_dataset.paths.validation"))
    read_whole("dataset.validation_split", d.validation_split);
  if (d.split.empty()) return;
  const bool second = d.split.size() > 1 && d.split[1] > 0;
  if (d.validation.empty() && !d.validation_samples.on() && second && !r.automodel) {
    d.validation = d.train;
    d.validation_weights = d.train_weights;
    r.origins["dataset.validation"] = Origin::derived;
    diagnostics.resolved("dataset.validation", "the second share of dataset.train");
  }
  if (d.validation.empty() || d.validation != d.train || r.given("dataset.validation_split") ||
      !d.validation_split.empty())
    return;
  d.validation_split = d.split;
  r.origins["dataset.validation_split"] = Origin::derived;
}

// The section alone asks for adapters, as it does for AutoModel. A printed recipe has `dim`.
void derive_adapters(Recipe& r) {
  if (r.given("peft.dim")) return;
  r.peft.dim = 8;
  r.origins["peft.dim"] = Origin::derived;
}
}  // namespace

void resolve_recipe(const ModelConfig& family, Recipe& r, Diagnostics& diagnostics) {
  take_automodel_values(r, diagnostics);
  derive_tokenizer(r, diagnostics);
  derive_row_length(r, diagnostics);
  take_foreign_values(r, diagnostics);
  expand_patterns(r.dataset.train);
  expand_patterns(r.dataset.validation);
  derive_split(r, diagnostics);
  auto& m = r.model;
  derive(r, "model.num_query_groups", m.num_query_groups, m.num_attention_heads);
  // The rules report a hidden size that the heads do not divide; here the division rounds down.
  derive(r, "model.kv_channels", m.kv_channels, std::max<int64_t>(1, m.head_dim()));
  derive(r, "model.ffn_hidden_size", m.ffn_hidden_size, m.ffn_size());
  if (m.embedding_multiplier == 0) {
    m.embedding_multiplier = std::sqrt(double(m.hidden_size));
    r.origins["model.embedding_multiplier"] = Origin::derived;
  }
  derive(r, "model.max_position_embeddings", m.max_position_embeddings,
         std::max(r.dataset.seq_length, sample_length(r)));
  derive(r, "dataset.seed", r.dataset.seed, r.train.seed);
  resolve_steps(r, diagnostics);
  if (r.checkpoint.dir.empty()) {
    r.checkpoint.dir = r.train.run_dir + "/checkpoints";
    r.origins["checkpoint.dir"] = Origin::derived;
  }
  derive_biases(family, r);
  derive_strategy(r, diagnostics);
  if (!r.given("mixed_precision.name")) derive_precision(r, diagnostics);
  derive_reduction(r);
  if (r.given_section("peft")) derive_adapters(r);
  check_foreign_values(r, diagnostics);
  if (r.model.moe.num_experts > 0)
    derive(r, "model.moe.ffn_hidden_size", r.model.moe.ffn_hidden_size, m.ffn_size());
  if (r.model.moe.num_experts > 0 && r.model.moe.num_shared_experts.value_or(0) > 0)
    derive(r, "model.moe.shared_expert_ffn_hidden_size", r.model.moe.shared_expert_ffn_hidden_size,
           *r.model.moe.num_shared_experts * *r.model.moe.ffn_hidden_size);
  derive_router(r);
  derive_experts(r, diagnostics);
  derive_packing(r, diagnostics);
  if (r.recompute.granularity == RecomputeGranularity::full) {
    derive(r, "recompute.method", r.recompute.method, RecomputeMethod::uniform);
    // For `block` the user chooses how many layers are recomputed; a rule asks for the number.
    if (r.recompute.method == RecomputeMethod::uniform)
      derive(r, "recompute.num_layers", r.recompute.num_layers, int64_t{1});
  }
  if (r.tokenizer.path && !r.given("tokenizer.type")) {
    r.tokenizer.type = TokenizerType::huggingface;
    r.origins["tokenizer.type"] = Origin::derived;
    diagnostics.resolved("tokenizer.type", "huggingface, because tokenizer.path is given");
  }
}

}  // namespace mtrain::recipe
