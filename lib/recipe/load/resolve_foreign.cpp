#include "recipe/load/resolve_foreign.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/foreign_keys.h"
#include "recipe/load/value.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {
namespace {

const std::string* foreign_value(const Recipe& r, const char* path) {
  const auto at = r.foreign.find(path);
  return at == r.foreign.end() ? nullptr : &at->second;
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value)
                                                                   : std::nullopt;
}

std::optional<ElementType> type_of(const std::string& text) {
  for (const auto& entry : enum_names(ElementType{}))
    if (fold_name(entry.name) == fold_name(text)) return entry.value;
  return std::nullopt;
}

// Megatron and Transformer Engine set the type of each moment separately; both are fp32 by default.
void take_moments(Recipe& r, Diagnostics& diagnostics) {
  const char *first = "optimizer.exp_avg_dtype", *second = "optimizer.exp_avg_sq_dtype";
  const std::string *a = foreign_value(r, first), *b = foreign_value(r, second);
  if (!a && !b) return;
  const std::string x = a ? *a : "fp32", y = b ? *b : "fp32";
  const auto type = type_of(x), other = type_of(y);
  const char *field = "optimizer.moments", *named = a ? first : second;
  if (type != other || !type || *type == ElementType::fp16)
    return diagnostics.add(
        named,
        fmt::format("the moments would be {} and {}; both have one type, fp32 or bf16", x, y),
        "write optimizer.moments: bf16, or leave both out");
  if (r.given(field)) {
    if ((r.optimizer.moments == MomentType::bf16) != (*type == ElementType::bf16))
      diagnostics.add(named, fmt::format("is {}, and {} is another type", x, field),
                      "keep one of them");
    return;
  }
  r.optimizer.moments = *type == ElementType::bf16 ? MomentType::bf16 : MomentType::fp32;
  r.origins[field] = Origin::derived;
}

// Megatron's scheduler sets the weight decay in every step and overrides that of its optimizer.
void take_weight_decay(Recipe& r, Diagnostics& diagnostics) {
  const char *first = "scheduler.start_weight_decay", *last = "scheduler.end_weight_decay";
  const std::string *begin = foreign_value(r, first), *end = foreign_value(r, last);
  const std::string* text = end ? end : begin;
  if (!text || *text == "none") return;
  const char *path = end ? last : first, *field = "optimizer.weight_decay";
  const auto value = number_of(*text);
  if (!value || !(*value >= 0))
    return diagnostics.add(path, fmt::format("expected a number, 0 or more, got `{}`", *text),
                           fmt::format("write {}", field));
  if (begin && end && number_of(*begin) != value)
    return diagnostics.add(path,
                           fmt::format("grows from {} to {}, which is not supported", *begin, *end),
                           fmt::format("write one of them as {}", field));
  if (r.optimizer.weight_decay == *value) return;
  diagnostics.resolved(field, fmt::format("{}, since Megatron's scheduler sets it", *value));
  r.optimizer.weight_decay = *value;
  r.origins[field] = Origin::derived;
}

// Megatron's Muon settings without a field here, and their values that mtrain follows anyway.
struct MuonKey {
  const char* path;
  std::vector<std::string_view> harmless;
};
const std::vector<MuonKey>& muon_keys() {
  static const std::vector<MuonKey> list{{"optimizer.muon_split_qkv", {"true", "yes", "on"}},
                                         {"optimizer.muon_coefficient_type", {"simple"}},
                                         {"optimizer.muon_scalar_optimizer", {"adam", "adamw"}}};
  return list;
}

// Megatron prints its Muon settings with every optimizer. For other optimizers they are ignored.
void take_muon(Recipe& r, Diagnostics& diagnostics) {
  const bool muon = r.optimizer.name == OptimizerName::muon;
  std::string ignored;
  const auto ignore = [&](const std::string& name) {
    ignored += (ignored.empty() ? "" : ", ") + name;
  };
  for (const MuonKey& key : muon_keys()) {
    const std::string* text = foreign_value(r, key.path);
    if (!text) continue;
    if (!muon)
      ignore(key.path);
    else if (std::ranges::find(key.harmless, to_lower(*text)) == key.harmless.end()) {
      const ForeignKey& refused = *find_foreign_key(key.path);
      diagnostics.add(key.path, std::string(refused.reason), std::string(refused.hint));
    }
  }
  const bool of_megatron = std::ranges::any_of(
      r.spellings, [](const auto& s) { return s.second.starts_with("optimizer.muon_"); });
  if (muon && of_megatron && r.distributed.tp_size > 1 && !r.given("optimizer.muon.tp_mode"))
    diagnostics.resolved("optimizer.muon.tp_mode", "gathered; Megatron's default is blockwise");
  Recipe defaults;
  for (const SchemaRow& row : schema_rows()) {
    if (muon || !row.path.starts_with("optimizer.muon.")) continue;
    const auto spelled = r.spellings.find(row.path);
    if (spelled == r.spellings.end() || !spelled->second.starts_with("optimizer.muon_")) continue;
    ignore(spelled->second);
    row.ops->copy(row.at(r), row.at(defaults));
    r.origins.erase(row.path), r.references.erase(row.path), r.spellings.erase(spelled);
  }
  if (!ignored.empty() && diagnostics.sound({"optimizer.name"}))
    diagnostics.resolved("optimizer.name", fmt::format("{}, which does not read {}",
                                                       enum_name(r.optimizer.name), ignored));
}

// Megatron's NullTokenizer has one more id than tokenizer.vocab_size, which ends documents.
void take_vocabulary(Recipe& r, Diagnostics& diagnostics) {
  const char* path = "tokenizer.vocab_size";
  const std::string* text = foreign_value(r, path);
  if (!text || r.tokenizer.type != TokenizerType::null || r.model.vocab_size > 0) return;
  const auto size = number_of(*text);
  if (!size || *size < 1 || *size > 1 << 30 || *size != double(int64_t(*size)))
    return diagnostics.add(path, fmt::format("expected a whole number, got `{}`", *text),
                           "write model.vocab_size");
  r.model.vocab_size = int64_t(*size) + 1;
  r.origins["model.vocab_size"] = Origin::derived;
  diagnostics.resolved("model.vocab_size", fmt::format("{}: NullTokenizer's {} ids, and one that "
                                                       "ends documents",
                                                       r.model.vocab_size, int64_t(*size)));
}

// Sets the type of messages between stages.
void take_pipeline_type(Recipe& r, Diagnostics& diagnostics) {
  const char *path = "model.pipeline_dtype", *field = "distributed.pipeline.dtype";
  const std::string* text = foreign_value(r, path);
  if (!text || r.distributed.pp_size == 1) return;
  const auto type = type_of(*text);
  if (!type)
    return diagnostics.add(path, fmt::format("expected fp32, bf16 or fp16, got `{}`", *text),
                           fmt::format("write {}", field));
  auto& own = r.distributed.pipeline.dtype;
  if (own && *own != *type)
    return diagnostics.add(path, fmt::format("is {}, and {} is {}", *text, field, enum_name(*own)),
                           "keep one of them");
  own = *type;
  r.origins[field] = Origin::derived;
}

// Compares the type of the main gradients with the type in which they are reduced: mtrain has one.
void check_gradients(Recipe& r, Diagnostics& diagnostics) {
  const char *path = "optimizer.main_grads_dtype", *field = "mixed_precision.grad_reduce_in_fp32";
  const std::string* text = foreign_value(r, path);
  if (!text) return;
  const auto type = type_of(*text);
  if (type == ElementType::fp32) return;
  if (type != ElementType::bf16)
    return diagnostics.add(path, fmt::format("expected fp32 or bf16, got `{}`", *text),
                           fmt::format("leave it out; {} decides", field));
  if (r.given(field) && r.mixed_precision.grad_reduce_in_fp32)
    return diagnostics.add(path, fmt::format("is {}, and {} is true", *text, field),
                           "gradients are kept in the type in which they are reduced; set it to "
                           "false, or leave main_grads_dtype out");
  r.mixed_precision.grad_reduce_in_fp32 = false;
  r.origins[field] = Origin::derived;
}

}  // namespace

void take_warmup_fraction(Recipe& r, Diagnostics& diagnostics) {
  const char *path = "scheduler.lr_warmup_fraction", *field = "lr_scheduler.warmup_steps";
  const std::string* text = foreign_value(r, path);
  if (!text) return;
  const auto fraction = number_of(*text);
  if (!fraction || !(*fraction >= 0 && *fraction <= 1))
    return diagnostics.add(path, fmt::format("expected a number from 0 to 1, got `{}`", *text),
                           fmt::format("write {}, a number of steps", field));
  if (r.given(field) && r.lr_scheduler.warmup_steps > 0)
    return diagnostics.add(path, fmt::format("is given beside {}", r.spellings.at(field)),
                           "keep one of them");
  const int64_t steps = r.lr_scheduler.decay_steps.value_or(r.train.steps);
  r.lr_scheduler.warmup_steps = int64_t(*fraction * double(steps));
  r.origins[field] = Origin::derived;
  diagnostics.resolved(
      field, fmt::format("{}: {} of {} steps", r.lr_scheduler.warmup_steps, *fraction, steps));
}

void take_foreign_values(Recipe& r, Diagnostics& diagnostics) {
  take_muon(r, diagnostics);
  if (r.foreign.empty()) return;
  take_moments(r, diagnostics);
  take_weight_decay(r, diagnostics);
  take_vocabulary(r, diagnostics);
  take_pipeline_type(r, diagnostics);
}

void check_foreign_values(Recipe& r, Diagnostics& diagnostics) {
  if (!r.foreign.empty()) check_gradients(r, diagnostics);
}

}  // namespace mtrain::recipe
