// Lists names of other systems whose values are in other units or words than ours.
#include <charconv>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

bool truth(const std::string& text) {
  const std::string word = to_lower(text);
  return word == "true" || word == "yes" || word == "on";
}

bool falsehood(const std::string& text) {
  const std::string word = to_lower(text);
  return word == "false" || word == "no" || word == "off" || word.empty();
}

// A text that is neither true nor false is passed on, so that the field's own message refuses it.
std::string choose(const std::string& text, const char* if_true, const char* if_false) {
  return truth(text) ? if_true : falsehood(text) ? if_false : text;
}

std::string minutes_to_seconds(const std::string& text) {
  double minutes = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), minutes);
  if (error != std::errc() || stop != text.data() + text.size()) return text;
  return fmt::format("{}", minutes * 60);
}

}  // namespace

const std::vector<ForeignSpelling>& foreign_spellings() {
  static const std::vector<ForeignSpelling> list{
      {"model.gated_linear_unit", "model.activation",
       [](const std::string& t) { return choose(t, "swiglu", "gelu"); }},
      {"dist.use_megatron_fsdp", "distributed.strategy",
       [](const std::string& t) { return choose(t, "megatron_fsdp", ""); }},
      {"ddp.use_megatron_fsdp", "distributed.strategy",
       [](const std::string& t) { return choose(t, "megatron_fsdp", ""); }},
      {"dist.use_torch_fsdp2", "distributed.strategy",
       [](const std::string& t) { return choose(t, "fsdp2", ""); }},
      {"model.cuda_graph_impl", "train.enable_cuda_graph",
       [](const std::string& t) {
         const std::string word = to_lower(t);
         return word == "local" || word == "transformer_engine" ? "true"
                : word == "none"                                ? "false"
                                                                : t;
       }},
      {"dist_env.timeout_minutes", "comm.timeout_s", minutes_to_seconds},
      {"dist.distributed_timeout_minutes", "comm.timeout_s", minutes_to_seconds},
  };
  return list;
}

}  // namespace mtrain::recipe
