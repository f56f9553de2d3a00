#include "plan/published_rows.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/core.h>

#include "base/error.h"
#include "base/gpu_facts.h"
#include "base/json.h"
#include "base/math.h"
#include "base/strings.h"
#include "plan/load_recipe.h"

namespace mtrain::plan {

namespace {

using nlohmann::json;

// Reads one object, and reports its mistakes.
class ObjectReader {
 public:
  ObjectReader(const json& object, std::string where, const std::string& source,
               Diagnostics& diagnostics)
      : object_(object), where_(std::move(where)), source_(source), diagnostics_(diagnostics) {
    if (!object_.is_object()) report("", "must be an object");
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): only a lack of memory throws, and it ends all
  ~ObjectReader() {
    if (!object_.is_object()) return;
    for (const auto& [key, value] : object_.items())
      if (!known_.contains(key)) report(key, "is unknown");
  }
  ObjectReader(const ObjectReader&) = delete;
  ObjectReader& operator=(const ObjectReader&) = delete;

  // Returns the value of a key that may be absent or null; null: it is.
  const json* find(const char* key) {
    known_.insert(key);
    if (!object_.is_object()) return nullptr;
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  void get(const char* key, std::optional<int64_t>& to, int64_t least = 1) {
    constexpr int64_t kMost = int64_t{1} << 40;
    const json* value = find(key);
    if (!value) return;
    if (!value->is_number_integer() || *value < least || *value > kMost)
      return report(key, fmt::format("must be an integer from {}", least));
    to = value->get<int64_t>();
  }
  void get(const char* key, std::optional<double>& to) {
    const json* value = find(key);
    if (!value) return;
    if (!value->is_number() || !(value->get<double>() > 0))
      return report(key, "must be a number above 0");
    to = value->get<double>();
  }
  void get(const char* key, std::optional<bool>& to) {
    const json* value = find(key);
    if (!value) return;
    if (!value->is_boolean()) return report(key, "must be true or false");
    to = value->get<bool>();
  }
  void get(const char* key, std::string& to) {
    const json* value = find(key);
    if (!value) return;
    if (!value->is_string()) return report(key, "must be a text");
    to = value->get<std::string>();
  }
  template <class T>
  void need(const char* key, T& to, int64_t least = 1) {
    if (object_.is_object() && !find(key)) return report(key, "is missing");
    if constexpr (std::is_same_v<T, int64_t>) {
      std::optional<int64_t> value;
      get(key, value, least);
      to = value.value_or(1);
    } else if constexpr (std::is_same_v<T, bool>) {
      std::optional<bool> value;
      get(key, value);
      to = value.value_or(false);
    } else {
      get(key, to);
    }
  }
  void report(std::string_view key, const std::string& reason) {
    const std::string field = key.empty() ? where_ : fmt::format("{}.{}", where_, key);
    diagnostics_.add_at(recipe::Severity::error, {source_, 0, 0}, field, reason);
  }

 private:
  const json& object_;
  const std::string where_;
  const std::string& source_;
  Diagnostics& diagnostics_;
  std::set<std::string, std::less<>> known_;
};

std::optional<Gpu> gpu_named(const std::string& name) {
  for (const auto& gpu : enum_names(Gpu{}))
    if (to_lower(name) == gpu.name) return gpu.value;
  return {};
}

bool has(const std::string& text, std::string_view word) {
  return text.find(word) != std::string::npos;
}

int64_t data_parallel(const PublishedRow& row) {
  return row.gpus / (*row.tp * row.pp.value_or(1) * *row.cp);
}

// torchtitan splits a rank's batch into as many micro-batches as the pipeline has ranks, unless its
// settings have another number.
void use_default_micro_batch(PublishedRow& row) {
  const bool unknown = has(row.notes, "micro-batch") && has(row.notes, "not published");
  if (row.source != "torchtitan" || !unknown || !row.batch || !row.tp || !row.cp) return;
  const int64_t pp = row.pp.value_or(1), parts = data_parallel(row) * pp;
  if (pp > 1 && parts > 0 && *row.batch % parts == 0) row.micro_batch = *row.batch / parts;
}

PublishedRow row_from(const json& object, size_t index, const std::string& source,
                      Diagnostics& diagnostics) {
  PublishedRow row{.number = int64_t(index + 1)};
  ObjectReader in(object, fmt::format("[{}]", index), source, diagnostics);
  in.need("source", row.source);
  in.need("model", row.model);
  in.need("precision", row.precision);
  in.need("gpus", row.gpus);
  std::string gpu;
  in.need("gpu", gpu);
  row.gpu = gpu_named(gpu);
  if (!gpu.empty() && !row.gpu) in.report("gpu", "is not a known GPU: " + gpu);
  in.get("strategy", row.strategy);
  in.get("recompute", row.recompute);
  in.get("release", row.release);
  in.get("task", row.task);
  in.get("notes", row.notes);
  in.get("flops_convention", row.flops_convention);
  in.get("gpu_variant", row.gpu_variant);
  in.get("recipe_dispatcher", row.dispatcher);
  in.get("recipe_cuda_graph", row.cuda_graph);
  in.get("seq", row.seq);
  in.get("gbs", row.batch);
  in.get("mbs", row.micro_batch);
  for (const auto& [key, size] : {std::pair{"tp", &row.tp},
                                  {"pp", &row.pp},
                                  {"vp", &row.vp},
                                  {"cp", &row.cp},
                                  {"ep", &row.ep},
                                  {"etp", &row.etp},
                                  {"gpus_per_node", &row.gpus_per_node}})
    in.get(key, *size);
  in.get("tokens_per_s_per_gpu", row.tokens_per_s);
  in.get("tflops_per_gpu", row.tflops);
  in.get("tp_overlap", row.tp_overlap);
  in.get("recipe_ep_overlap", row.ep_overlap);
  in.get("compile", row.compile);
  for (const char* key : {"recipe_offload_layers", "recipe_pp_layout", "balanced"})
    if (const json* value = in.find(key)) row.settings += fmt::format("{}={} ", key, value->dump());
  for (const char* ignored : {"file", "memory_gib", "step_time_s"}) in.find(ignored);
  use_default_micro_batch(row);
  return row;
}

PublishedModel model_from(const json& object, const std::string& name, const std::string& source,
                          Diagnostics& diagnostics) {
  PublishedModel m;
  ObjectReader in(object, name, source, diagnostics);
  in.need("num_layers", m.layers);
  in.need("hidden_size", m.hidden);
  in.need("num_attention_heads", m.heads);
  in.need("num_query_groups", m.groups);
  in.need("head_dim", m.head_dim);
  in.need("ffn_hidden_size", m.ffn);
  in.need("vocab_size", m.vocab);
  in.need("activation", m.activation);
  in.need("tie_embeddings", m.tied);
  if (!m.activation.empty() && m.activation != "swiglu" && m.activation != "gelu" &&
      m.activation != "relu2")
    in.report("activation", "must be swiglu, gelu or relu2");
  const auto optional = [](ObjectReader& from, const char* key, int64_t& to) {
    std::optional<int64_t> value;
    from.get(key, value, 0);
    to = value.value_or(0);
  };
  optional(in, "mtp_layers", m.mtp_layers);
  optional(in, "window", m.window);
  optional(in, "window_every", m.window_every);
  if (const json* moe = in.find("moe")) {
    ObjectReader e(*moe, name + ".moe", source, diagnostics);
    m.experts.emplace();
    e.need("num_experts", m.experts->number);
    e.need("router_topk", m.experts->topk);
    e.need("ffn_hidden_size", m.experts->ffn);
    optional(e, "first_dense_layers", m.experts->first_dense);
    optional(e, "shared_expert_ffn_hidden_size", m.experts->shared_ffn);
  }
  if (const json* mla = in.find("mla")) {
    ObjectReader l(*mla, name + ".mla", source, diagnostics);
    m.latent.emplace();
    l.need("q_lora_rank", m.latent->q_lora, 0);
    l.need("kv_lora_rank", m.latent->kv_lora);
    l.need("qk_nope_head_dim", m.latent->nope);
    l.need("qk_rope_head_dim", m.latent->rope);
    l.need("v_head_dim", m.latent->value);
  }
  return m;
}

// What a program does in all its published rows, where the rows themselves do not say it.
struct Habits {
  const char* source;
  const char* stack;
  bool tp_overlap = false;     // ring exchanges hide tp's collectives
  bool fp32_gradients = true;  // gradients are reduced in fp32
  bool delayed = false;        // 8-bit scales follow from earlier steps
};
constexpr Habits kHabits[] = {
    {"Megatron-Bridge", "megatron_bridge", true, false},
    {"Megatron-Bridge skill", "megatron_bridge", true, false},
    {"Megatron-Bridge card", "megatron_bridge", true, false},
    {"Megatron-LM example", "megatron_bridge", true, false},
    {"NeMo", "megatron_bridge", true, false},
    {"Megatron-LM weak scaling", "megatron_lm", true, true},
    {"Megatron-LM strong scaling", "megatron_lm", true, true},
    {"llmq", "llmq", false, false},
    {"llm-foundry", "llm_foundry", false, true, true},
};
Habits habits_of(const PublishedRow& row) {
  for (const Habits& h : kHabits)
    if (row.source == h.source) return h;
  return {.source = "", .stack = ""};
}

constexpr std::array<const char*, 4> kPrecisions{"bf16", "fp8", "mxfp8", "fp8_rowwise"};

// Names of modules in a row's recomputation, and what mtrain recomputes for it.
struct RecomputeWord {
  const char* word;
  const char* module;  // empty: norms' and activations' outputs alone
};
constexpr RecomputeWord kRecomputeWords[] = {
    {"mla_up_proj", "mla_up_proj"},
    {"ffn", "mlp"},
    {"mlp", "mlp"},
    {"moe_act", "moe_act"},
    {"core_attn", "core_attn"},
    {"norm", "layernorm"},
    {"swiglu", ""},
    {"gelu", ""},
    // PyTorch's selection by operation keeps every other GEMM's output.
    {"per op", "mlp"},
};

void add_recompute(const PublishedRow& row, std::vector<std::string>& settings) {
  const std::string& text = row.recompute;
  settings.emplace_back("recompute.cheap=false");
  if (text.starts_with("full") || text.starts_with("\"full\"")) {
    settings.emplace_back("recompute.granularity=full");
    if (const size_t at = text.rfind(';'); has(text, "block") && at != std::string::npos) {
      settings.emplace_back("recompute.method=block");
      settings.push_back("recompute.num_layers=" + text.substr(at + 1));
    }
    return;
  }
  std::string modules;
  for (const RecomputeWord& w : kRecomputeWords)
    if (has(text, w.word)) {
      if (!*w.module)
        settings.back() = "recompute.cheap=true";
      else if (!has(modules, w.module))
        modules += (modules.empty() ? "" : ", ") + std::string(w.module);
    }
  if (modules.empty()) return;
  settings.emplace_back("recompute.granularity=selective");
  settings.push_back("recompute.modules=[" + modules + "]");
}

void add_strategy(const PublishedRow& row, std::vector<std::string>& settings) {
  const std::string& text = row.strategy;
  const bool sharded = has(text, "fsdp");
  // mtrain's megatron_fsdp has neither tp with sequence parallelism nor pipelines; fsdp2 shards
  // alike.
  settings.push_back(std::string("distributed.strategy=") + (sharded ? "fsdp2" : "megatron_ddp"));
  if (has(text, "kept after forward"))
    settings.emplace_back("distributed.reshard_after_forward=false");
  if (const size_t over = text.find(" over "); sharded && over != std::string::npos) {
    const int64_t shard = std::strtoll(text.c_str() + over + 6, nullptr, 10),
                  dp = data_parallel(row);
    if (shard > 0 && shard < dp && dp % shard == 0 && dp / shard > 1)
      settings.push_back(fmt::format("distributed.dp_replicate_size={}", dp / shard));
  }
}

// Writes "field=value".
class SettingList {
 public:
  explicit SettingList(std::vector<std::string>& settings) : settings_(settings) {}
  void operator()(const char* field, const auto& value) const {
    settings_.push_back(fmt::format("{}={}", field, value));
  }

 private:
  std::vector<std::string>& settings_;
};

void add_model(const PublishedRow& row, const PublishedModel& m,
               std::vector<std::string>& settings) {
  const SettingList set(settings);
  const bool qwen2 = row.model.starts_with("qwen2"), qwen3 = row.model.starts_with("qwen3");
  set("model.architecture", m.latent             ? "deepseek_v3"
                            : qwen3 && m.experts ? "qwen3_moe"
                            : qwen3              ? "qwen3"
                            : qwen2              ? "qwen2"
                            : m.experts          ? "mixtral"
                                                 : "llama");
  set("model.num_layers", m.layers);
  set("model.hidden_size", m.hidden);
  set("model.num_attention_heads", m.heads);
  set("model.num_query_groups", m.groups);
  set("model.ffn_hidden_size", m.ffn);
  set("model.vocab_size", m.vocab);
  set("model.share_embeddings_and_output_weights", m.tied ? "true" : "false");
  // All activations without a gate cost alike.
  if (m.activation != "swiglu") set("model.activation", "gelu_tanh");
  if (m.latent) {
    set("model.q_lora_rank", m.latent->q_lora > 0 ? std::to_string(m.latent->q_lora) : "none");
    set("model.kv_lora_rank", m.latent->kv_lora);
    set("model.qk_nope_head_dim", m.latent->nope);
    set("model.qk_rope_head_dim", m.latent->rope);
    set("model.v_head_dim", m.latent->value);
  } else {
    set("model.kv_channels", m.head_dim);
  }
  if (m.experts) {
    set("model.moe.num_experts", m.experts->number);
    set("model.moe.router_topk", m.experts->topk);
    set("model.moe.ffn_hidden_size", m.experts->ffn);
    set("model.moe.first_dense_layers", m.experts->first_dense);
    if (m.experts->shared_ffn > 0)
      set("model.moe.shared_expert_ffn_hidden_size", m.experts->shared_ffn);
    if (row.dispatcher == "hybridep" || row.dispatcher == "deepep")
      set("model.moe.token_dispatcher", "flex");
  }
  if (m.mtp_layers > 0) set("model.mtp_num_layers", m.mtp_layers);
  if (m.window > 0) {
    set("model.window_size", m.window);
    set("model.window_attn_skip_freq", m.window_every);
  }
}

}  // namespace

const PublishedModel* PublishedRows::model_of(const PublishedRow& row) const {
  const auto at = models.find(row.model);
  return at == models.end() ? nullptr : &at->second;
}

PublishedRows read_published_rows(const std::string& rows, const std::string& models) {
  PublishedRows all;
  Diagnostics diagnostics;
  const json row_list = read_json(rows), model_list = read_json(models);
  if (!row_list.is_array())
    diagnostics.add_at(recipe::Severity::error, {rows, 0, 0}, "rows", "must be a list of objects");
  else
    for (const json& row : row_list)
      all.rows.push_back(row_from(row, all.rows.size(), rows, diagnostics));
  if (!model_list.is_object())
    diagnostics.add_at(recipe::Severity::error, {models, 0, 0}, "models",
                       "must be an object with a shape for each name");
  else
    for (const auto& [name, model] : model_list.items())
      all.models.emplace(name, model_from(model, name, models, diagnostics));
  diagnostics.throw_if_errors();
  return all;
}

std::string row_obstacle(const PublishedRow& row, const PublishedRows& all) {
  const PublishedModel* model = all.model_of(row);
  if (!model) return "the model's shapes are unknown";
  for (const auto& [name, size] : {std::pair{"seq", row.seq},
                                   {"gbs", row.batch},
                                   {"mbs", row.micro_batch},
                                   {"tp", row.tp},
                                   {"pp", row.pp},
                                   {"cp", row.cp},
                                   {"ep", row.ep}})
    if (!size) return std::string(name) + " is not published";
  if (std::ranges::find(kPrecisions, row.precision) == kPrecisions.end())
    return "mtrain has no " + row.precision;
  if (row.task == "lora" || row.task == "sft") return "fine-tuning";
  if (!row.tokens_per_s && !(row.tflops && !row.flops_convention.empty()))
    return "neither tokens/s nor TFLOP/s by a known convention";
  if (!row.tokens_per_s && model->experts) return "experts without tokens/s";
  if (row.gpus % (*row.tp * *row.pp * *row.cp) != 0) return "the sizes do not divide the GPUs";
  if (*row.batch % (data_parallel(row) * *row.micro_batch) != 0)
    return "the batch is not a whole number of micro-batches";
  return "";
}

std::string stack_of(const PublishedRow& row) {
  if (const Habits h = habits_of(row); *h.stack) return h.stack;
  std::string name = to_lower(row.source);
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

std::string configuration_of(const PublishedRow& row) {
  std::string key =
      fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}", row.source, row.model, int(*row.gpu), row.precision,
                  row.strategy, row.recompute, row.gpu_variant, row.dispatcher, row.cuda_graph);
  const std::optional<int64_t> sizes[] = {row.gpus, row.seq, row.batch, row.micro_batch, row.tp,
                                          row.pp,   row.vp,  row.cp,    row.ep,          row.etp};
  for (const auto& size : sizes) key += fmt::format("|{}", size.value_or(0));
  for (const std::optional<bool>& flag : {row.tp_overlap, row.ep_overlap, row.compile})
    key += flag ? *flag ? "|1" : "|0" : "|";
  return key + "|" + row.settings;
}

std::string row_text(const PublishedRow& row) {
  std::string text = fmt::format("{} {} x {} {} seq {} batch {} / {}", row.model, row.gpus,
                                 enum_name(*row.gpu), row.precision, row.seq.value_or(0),
                                 row.batch.value_or(0), row.micro_batch.value_or(0));
  const auto size = [&](const char* name, const std::optional<int64_t>& value) {
    if (value.value_or(1) > 1) text += fmt::format(" {} {}", name, *value);
  };
  size("tp", row.tp);
  size("pp", row.pp);
  size("vp", row.vp);
  size("cp", row.cp);
  size("ep", row.ep);
  if (row.tp_overlap.value_or(false)) text += " async tp";
  if (row.ep_overlap.value_or(false)) text += " ep overlap";
  if (!row.compile.value_or(true)) text += " eager";
  return text;
}

double flops_of_token(const PublishedModel& m, int64_t seq) {
  const auto h = double(m.hidden), q = double(m.heads * m.head_dim),
             kv = double(m.groups * m.head_dim);
  const double gates = m.activation == "swiglu" ? 3 : 2;
  double attention = h * (q + 2 * kv) + q * h, scores = q;
  if (m.latent) {
    const PublishedModel::Latent& l = *m.latent;
    const double heads = double(m.heads), qk = double(l.nope + l.rope), v = double(l.value);
    attention = (l.q_lora > 0 ? (h + heads * qk) * double(l.q_lora) : h * heads * qk) +
                h * double(l.kv_lora + l.rope) + double(l.kv_lora) * heads * (double(l.nope) + v) +
                heads * v * h;
    scores = heads * (qk + v) / 2;
  }
  double mlp = double(m.layers) * gates * h * double(m.ffn);
  if (m.experts) {
    const auto dense = double(m.experts->first_dense);
    mlp = gates * h *
          (dense * double(m.ffn) +
           (double(m.layers) - dense) *
               double(m.experts->topk * m.experts->ffn + m.experts->shared_ffn));
  }
  const double weights = double(m.layers) * attention + mlp + h * double(m.vocab);
  return 6 * weights + 6 * double(m.layers) * scores * double(seq);
}

double measured_step(const PublishedRow& row, const PublishedModel& model) {
  double tokens = row.tokens_per_s.value_or(0);
  if (tokens == 0) {
    double flops = flops_of_token(model, *row.seq);
    if (row.flops_convention == "full")
      flops += 6 * double(model.layers * model.heads * model.head_dim * *row.seq);
    tokens = *row.tflops * 1e12 / flops;
  }
  return double(*row.batch * *row.seq) / double(row.gpus) / tokens;
}

std::vector<std::string> settings_of(const PublishedRow& row, const PublishedModel& m) {
  std::vector<std::string> s{
      "dataset.train=unused", "train.run_dir=unused", "train.device=cuda",
      "train.steps=1000",     "optimizer.lr=1e-4",
  };
  const SettingList set(s);
  add_model(row, m, s);
  set("dataset.seq_length", *row.seq);
  set("train.global_batch_size", *row.batch);
  set("train.micro_batch_size", *row.micro_batch);

  const Habits habits = habits_of(row);
  set("mixed_precision.name", "bf16_mixed");
  set("mixed_precision.grad_reduce_in_fp32", habits.fp32_gradients ? "true" : "false");
  if (row.precision != "bf16") {
    const bool delayed = habits.delayed || has(row.notes, "delayed scaling");
    set("mixed_precision.fp8", "hybrid");
    set("mixed_precision.fp8_recipe", row.precision == "mxfp8" ? "mxfp8"
                                      : delayed                ? "delayed"
                                                               : "tensorwise");
  }
  if (has(row.notes, "bf16 Adam state")) set("optimizer.moments", "bf16");

  add_strategy(row, s);
  set("distributed.tp_size", *row.tp);
  set("distributed.pp_size", *row.pp);
  set("distributed.cp_size", *row.cp);
  set("distributed.ep_size", *row.ep);
  if (*row.tp > 1) {
    set("distributed.sequence_parallel", "true");
    set("comm_overlap.tp_comm_overlap",
        row.tp_overlap.value_or(habits.tp_overlap) ? "true" : "false");
  }
  if (*row.pp > 1) {
    const int64_t vp = row.vp.value_or(1);
    set("distributed.pipeline.pp_schedule", vp > 1 ? "interleaved_1f1b" : "1f1b");
    if (vp > 1) set("distributed.vpp_size", vp);
    // Megatron counts the embedding and the head as layers if the stages are even only then.
    if (m.layers % (*row.pp * vp) != 0 && (m.layers + 2) % (*row.pp * vp) == 0) {
      set("distributed.pipeline.account_for_embedding", "true");
      set("distributed.pipeline.account_for_loss", "true");
    }
  }
  if (*row.ep > 1) {
    if (row.etp.value_or(0) == 1 && *row.tp > 1) set("distributed.expert_tp_size", 1);
    if (row.ep_overlap.value_or(false))
      set("comm_overlap.overlap_moe_expert_parallel_comm", "true");
  }
  add_recompute(row, s);
  set("hardware.gpu", enum_name(*row.gpu));
  return s;
}

Cluster cluster_of(const PublishedRow& row) {
  std::string text = fmt::format("gpu: {{kind: {}", enum_name(*row.gpu));
  // Such as "2.4 TB/s": a variant with other memory.
  if (const size_t at = row.gpu_variant.find(" TB/s"); at != std::string::npos) {
    const size_t begin = row.gpu_variant.rfind(' ', at - 1);
    text += fmt::format(", memory_gbytes_s: {}",
                        1000 * std::strtod(row.gpu_variant.c_str() + begin + 1, nullptr));
  }
  text += "}\n";
  int64_t domain = facts(*row.gpu).domain_gpus;
  if (row.gpus_per_node) domain = *row.gpus_per_node;
  // Jobs of powers of two leave 8 GPUs of a rack with 72 idle.
  constexpr int64_t kRack = 72, kUsed = 64;
  if (domain == kRack && row.gpus > kUsed) domain = kUsed;
  text += fmt::format("domain: {{gpus: {}}}\nnodes: {}\n", domain, ceil_div(row.gpus, domain));
  Diagnostics diagnostics;
  Cluster cluster = read_cluster_text(text, fmt::format("row {}", row.number), diagnostics);
  diagnostics.throw_if_errors();
  return cluster;
}

RecipeSource source_of(const PublishedRow& row, const PublishedModel& model,
                       const recipe::ModelSource& models) {
  return {.models = &models,
          .path = fmt::format("row {}", row.number),
          .settings = settings_of(row, model),
          .world = row.gpus,
          .machine = {.dry_run = true},
          .text = "model: {}\n"};
}

RunPlan plan_of(const PublishedRow& row, const PublishedModel& model,
                const recipe::ModelSource& models) {
  Diagnostics diagnostics;
  const RecipeSource source = source_of(row, model, models);
  const recipe::Recipe recipe = load_recipe_text(models, source.text, source.path, source.settings,
                                                 diagnostics, source.world, source.machine);
  diagnostics.throw_if_errors();
  return make_plan(recipe, row.gpus, model.vocab);
}

}  // namespace mtrain::plan
