// Tests that every setting of a recipe has a reader: each row of the schema gets other values,
// under several layouts, until the plan of the run differs. A field that never changes a plan has
// no effect, and its help must say so.
#include <functional>

#include <fmt/core.h>

#include "interchange/model_source.h"
#include "plan/rules/unsupported.h"
#include "plan/run_plan.h"
#include "recipe/load/value.h"
#include "recipe/schema/schema.h"
#include "recipe_cases.h"

namespace plan_field_readers_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

// Prints the parts of a plan that a run acts on. Structured bindings name every member, so that a
// struct that gains one does not compile until it is printed here, too.
class Print {
 public:
  explicit Print(const RunPlan& p) {
    all(p.layout, p.overlap.tp_gemm_overlap.values, p.overlap.cp_overlap,
        p.overlap.shared_expert_overlap, p.overlap.moe_dispatch_chunks, p.graphs.on, p.graphs.first,
        p.graphs.end, p.schedule_shape, p.pipeline, p.data_parallel, p.tensor.sequence_parallel,
        p.context, p.experts, p.model, p.recompute, p.compute_dtype, p.logits_dtype, p.fp8,
        p.sample_length, p.optimizer, p.lr_schedule, p.loss_scale, p.train, p.validation,
        p.checkpoint, p.folders, p.dataset, p.device, p.comm, p.debug);
  }
  std::string text;

 private:
  template <class... T>
  void all(const T&... values) {
    (add(values), ...);
  }
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_enum_v<T>)
      text += fmt::format("{} ", int(value));
    else
      text += fmt::format("{} ", value);
  }
  template <class T>
  void add(const std::optional<T>& value) {
    value ? add(*value) : add(std::string("none"));
  }
  template <class T>
  void add(const std::vector<T>& values) {
    for (const T& value : values) add(value);
    text += "; ";
  }
  template <class T, size_t N>
  void add(const std::array<T, N>& values) {
    for (const T& value : values) add(value);
  }
  void add(const std::map<std::string, std::string>& values) {
    for (const auto& [key, value] : values) all(key, value);
  }
  void add(const GemmOverlap& o) {
    const auto& [a, b, c] = o;
    all(a, b, c);
  }
  void add(const Layout& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, p, layers] = o;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, p, layers);
  }
  void add(const ScheduleShape& o) {
    const auto& [a, b, c, d, e, f, table] = o;
    all(a, b, c, d, e, f, table != nullptr);
  }
  void add(const schedule::PartCost& o) {
    const auto& [a, b, c] = o;
    all(a, b, c);
  }
  void add(const schedule::PassCosts& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = o;
    all(a, b, c, d, e, f, g, h, i, j);
  }
  void add(const PipelineOptions& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = o;
    all(a, b, c, d, e, f, g, h, i, j, k, l);
  }
  void add(const ReduceOptions& o) {
    const auto& [a, b] = o;
    all(a, b);
  }
  void add(const GatheredParamsOptions& o) {
    const auto& [a, b, c] = o;
    all(a, b, c);
  }
  void add(const ShardedParamsOptions& o) {
    const auto& [a, b, c, d, e] = o;
    all(a, b, c, d, e);
  }
  void add(const DataParallelOptions& o) {
    const auto& [a, b, c, d, e, f, g] = o;
    all(a, b, c, d, e, f, g);
  }
  void add(const ExpertOptions& o) {
    const auto& [a, b, c] = o;
    all(a, b, c);
  }
  void add(const ContextOptions& o) {
    const auto& [a, b] = o;
    all(a, b);
  }
  void add(const RouterForm& o) {
    const auto& [a, b, c, d, e, f] = o;
    all(a, b, c, d, e, f);
  }
  void add(const RouterLossCoeffs& o) {
    const auto& [a, b, c, d] = o;
    all(a, b, c, d);
  }
  void add(const spec::Experts& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = o;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m);
  }
  void add(const spec::DenseMlp& o) {
    const auto& [a, b, c] = o;
    all(a, b, c);
  }
  void add(const spec::RopeScaling& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = o;
    all(a, b, c, d, e, f, g, h, i, j, k);
  }
  void add(const spec::Rotary& o) {
    const auto& [a, b, c] = o;
    all(a, b, c);
  }
  void add(const spec::GroupedAttention& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = o;
    all(a, b, c, d, e, f, g, h, i, j);
  }
  void add(const spec::LayerSpec& o) {
    const auto& [a, b, attention, mlp] = o;
    all(a, b);
    std::visit([&](const auto& v) { all(v); }, attention);
    std::visit([&](const auto& v) { all(v); }, mlp);
  }
  void add(const spec::NormSpec& o) {
    const auto& [a, b, c, d] = o;
    all(a, b, c, d);
  }
  void add(const spec::ModelSpec& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = o;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  }
  void add(const RecomputeOptions& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = o;
    all(a, b, c, d, e, f, g, h, i, j);
  }
  void add(const MuonOptions& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = o;
    all(a, b, c, d, e, f, g, h, i, j, k);
  }
  void add(const plan::OptimizerGroup& o) {
    const auto& [a, b, c, d, e] = o;
    all(a, b, c, d, e);
  }
  void add(const OptimizerOptions& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = o;
    all(a, b, c, d, e, f, g, h, i, j, k);
  }
  void add(const LrScheduleOptions& o) {
    const auto& [a, b, c, d, e, f] = o;
    all(a, b, c, d, e, f);
  }
  void add(const LossScaleOptions& o) {
    const auto& [a, b, c, d, e, f] = o;
    all(a, b, c, d, e, f);
  }
  void add(const Fp8Options& o) {
    const auto& [a, b, c, d, e, f, g, h] = o;
    all(a, b, c, d, e, f, g, h);
  }
  void add(const LinearFormats& o) {
    const auto& [a, b, c] = o;
    all(a, b, c);
  }
  void add(const QuantFormat& o) {
    const auto& [a, b] = o;
    all(a, b);
  }
  void add(const TrainOptions& o) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = o;
    all(a, b, c, d, e, f, g, h, i, j);
  }
  void add(const ValidationOptions& o) {
    const auto& [a, b] = o;
    all(a, b);
  }
  void add(const CheckpointOptions& o) {
    const auto& [a, b, c, d, e] = o;
    all(a, b, c, d, e);
  }
  void add(const FolderOptions& o) {
    const auto& [a, b, c, d, e, f] = o;
    all(a, b, c, d, e, f);
  }
  void add(const DatasetOptions::Blend& o) {
    const auto& [a, b] = o;
    all(a, b);
  }
  void add(const TokenizerOptions& o) {
    const auto& [a, b, c, d] = o;
    all(a, b, c, d);
  }
  void add(const DatasetOptions& o) {
    const auto& [a, b, c, d, e, f, g] = o;
    all(a, b, c, d, e, f, g);
  }
  void add(const DevicePlan& o) {
    const auto& [a, b, c, d, e, f, g, h] = o;
    all(a, b, c, d, e, f, g, h);
  }
  void add(const CommOptions& o) {
    const auto& [a, b, c, d, e] = o;
    all(a, b, c, d, e);
  }
  void add(const FaultOptions& o) {
    const auto& [a, b, c, d, e] = o;
    all(a, b, c, d, e);
  }
  void add(const DebugOptions& o) {
    const auto& [a, b] = o;
    all(a, b);
  }
};

// Recipes under which fields have an effect; one of them suffices for a field.
struct Base {
  int64_t world;
  Overrides set;
};
const std::vector<Base>& bases() {
  static const std::vector<Base> list{
      {1, {}},
      {8, {}},
      {8, {"distributed.strategy=megatron_ddp"}},
      {8, {"distributed.strategy=megatron_fsdp", "comm.link.gbps=1"}},
      {8,
       {"distributed.tp_size=4", "distributed.sequence_parallel=true",
        "comm_overlap.tp_comm_overlap=true", "distributed.strategy=megatron_ddp"}},
      {8,
       {"distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p",
        "distributed.hierarchical_context_parallel_sizes=[2,2]"}},
      {8,
       {"distributed.pp_size=2", "distributed.vpp_size=2", "model.num_layers=16",
        "distributed.strategy=megatron_ddp"}},
      {8,
       {"distributed.pp_size=2", "distributed.vpp_size=2", "model.num_layers=16",
        "distributed.strategy=megatron_ddp", "comm_overlap.fine_grained_1f1b=true"}},
      {2,
       {"distributed.pp_size=2", "distributed.pipeline={layers_per_stage: 2}",
        "distributed.pipeline.pp_schedule=interleaved_1f1b", "model.num_layers=9",
        "distributed.pipeline.round_virtual_stages_to_pp_multiple=up",
        "comm_overlap.defer_embedding_wgrad_compute=true"}},
      {2,
       {"distributed.pp_size=2", "distributed.pipeline={}", "step_scheduler.local_batch_size=8"}},
      {1, {"recompute=full", "recompute.method=block", "recompute.num_layers=3"}},
      {1, {"recompute=selective"}},
      {1,
       {"model.rope_scaling=llama3", "model.hidden_dropout=0.1", "lr_scheduler.style=wsd",
        "lr_scheduler.wsd_decay_steps=100", "optimizer.name=adam", "optimizer.master_weights=false",
        "packed_sequence.packed_sequence_size=512", "model.max_position_embeddings=1024"}},
      {1,
       {"model.rope_scaling=yarn", "model.rope_scaling.mscale=2",
        "model.rope_scaling.mscale_all_dim=3", "model.qk_layernorm=true"}},
      {1,
       {"model.kv_channels=4", "model.rope_scaling=longrope",
        "model.rope_scaling.short_factor=[1, 1]", "model.rope_scaling.long_factor=[1, 1]"}},
      {1,
       {"model.kv_channels=4", "model.rope_scaling=longrope",
        "model.rope_scaling.short_factor=[1, 1]", "model.rope_scaling.long_factor=[1, 1]",
        "model.rope_scaling.original_max_position_embeddings=512"}},
      {1, {"model.window_size=64"}},
      {1, {"mixed_precision=fp16_mixed"}},
      {1, {"optimizer.name=muon"}},
      {1,
       {"model.moe.num_experts=8", "model.moe.router_topk=3", "model.moe.num_groups=4",
        "model.moe.group_topk=2", "model.moe.load_balancing_type=aux_loss",
        "model.moe.aux_loss_coeff=0.01", "model.moe.shared_expert_ffn_hidden_size=64"}},
      {8,
       {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=64", "distributed.ep_size=4",
        "distributed.pp_size=1", "model.moe.shared_expert_ffn_hidden_size=64"}},
      {8,
       {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=64", "distributed.tp_size=4",
        "distributed.sequence_parallel=true"}},
      {1, {"model.moe.num_experts=8", "model.moe.expert_capacity_factor=1.5"}},
      {8,
       {"model.moe.num_experts=8", "model.moe.expert_capacity_factor=1.5", "distributed.ep_size=4",
        "distributed.pp_size=1"}},
      {1,
       {"train.device=cuda", "mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=delayed",
        "mixed_precision.fp8_amax_history_len=8"}},
      {1,
       {"train.device=cuda", "mixed_precision.fp8=hybrid",
        "mixed_precision.first_last_layers_bf16=true"}},
      {4, {"train.device=cuda", "distributed.tp_size=2", "distributed.strategy=megatron_ddp"}},
      {1,
       {"debug.fault.at=adamw", "dataset.validation=y", "validation.every_steps=20",
        "checkpoint.every_steps=10", "tokenizer.path=t.json", "checkpoint.load=c"}},
  };
  return list;
}

// Fields that are not read by the plan, and their readers.
struct Elsewhere {
  const char* path;
  const char* reader;
};
const Elsewhere kElsewhere[] = {
    {"launch.env", "the programs set the environment of a rank"},
    {"hardware.gpus_per_node", "rules and estimates alone, as the section's help says"},
    {"debug.strict", "rules: it makes their warnings errors"},
    {"debug.emulate_fp8", "rules: it permits what a CPU would refuse"},
    {"model.from", "the loader, which reads the folder's config.json"},
    {"model.init", "plan::folder_options(), where model.from is set"},
    {"model.ignore_keys", "the loader, and plan::folder_options()"},
    {"model.attention_dropout", "rules: it must be 0"},
    {"mixed_precision.fp8_param_gather", "check_supported refuses it"},
    {"checkpoint.async", "check_supported refuses it"},
    {"checkpoint.model_save_format", "the loader: there is one format"},
    {"distributed.dp_size", "rules: it must be what the world leaves"},
    {"distributed.pipeline.pp_schedule_csv", "plan::schedule_shape(), which reads the file"},
    {"distributed.use_decentralized_pg", "rules: it excludes hierarchical sizes"},
};

// Settings of models with experts that no run reads yet: check_supported() refuses them.
bool belongs_to_planned_experts(std::string_view path) {
  return path == "distributed.moe.lm_head_precision";
}

std::vector<std::string> other_values(const recipe::SchemaRow& row) {
  using Kind = recipe::TypeInfo::Kind;
  const recipe::TypeInfo info = row.ops->info();
  switch (info.kind) {
    case Kind::boolean: return {"true", "false"};
    case Kind::integer: return {"1", "2", "3", "4", "8", "16", "5000", "none"};
    case Kind::number: return {"1e-5", "0.25", "0.5", "1", "2.5", "64", "none"};
    case Kind::text: return {"other", "latest", "Ettt|tttttL"};
    case Kind::choice: return info.shown;
    case Kind::list:
      if (info.item == Kind::choice) return info.shown;
      return {"[2, 2]",     "[4, 1]", "[2]",       "[0.5]",
              "[0.5, 0.5]", "[a, b]", "[1, 2, 3]", "[{match: a, lr: 1}]"};
    case Kind::mapping: return {"{A: b}", "{qkv_fprop: none, fc2_fprop: {num_splits: 2}}"};
  }
  return {};
}

}  // namespace

TEST_CASE("settings of experts that no run reads are refused by name") {
  const auto refused = [](const std::function<void(Recipe&)>& change) {
    Recipe r;
    r.model.moe.num_experts = 8;
    change(r);
    Diagnostics diagnostics;
    check_supported(r, diagnostics);
    return diagnostics.text(recipe::Severity::error);
  };
  using Catch::Matchers::Contains;
  CHECK(refused([](Recipe&) {}).empty());
  CHECK(refused([](Recipe& r) { r.distributed.ep_size = 2; }).empty());
  const auto refused_over_ranks = [&](const std::function<void(Recipe&)>& change) {
    return refused([&](Recipe& r) {
      r.distributed.ep_size = 2;
      change(r);
    });
  };
  const auto flex_over_tp = [&](bool sequence, std::optional<int64_t> expert_tp) {
    return refused_over_ranks([=](Recipe& r) {
      r.distributed.tp_size = 2;
      r.distributed.sequence_parallel = sequence;
      if (expert_tp) r.distributed.expert_tp_size = *expert_tp;
      r.model.moe.token_dispatcher = TokenDispatch::flex;
    });
  };
  CHECK(flex_over_tp(false, {}).empty());
  CHECK(flex_over_tp(true, 1).empty());
  CHECK_THAT(flex_over_tp(true, {}), Contains("flex"));
  using enum recipe::Precision;
  using recipe::ElementType;
  for (const auto& [precision, same] : {std::pair{fp32, ElementType::fp32},
                                        {bf16_mixed, ElementType::bf16},
                                        {fp16_mixed, ElementType::fp16}})
    for (const ElementType head : {ElementType::fp32, ElementType::bf16, ElementType::fp16}) {
      const std::string errors = refused_over_ranks([&, head](Recipe& r) {
        r.mixed_precision.name = precision;
        r.distributed.moe.lm_head_precision = head;
      });
      CAPTURE(enum_name(precision), enum_name(head), errors);
      CHECK((errors.find("an output layer with a type of its own") == std::string::npos) ==
            (head == same));
    }
  CHECK(refused([](Recipe& r) { r.distributed.tp_size = 2; }).empty());
  CHECK_THAT(refused([](Recipe& r) { r.model.activation = recipe::Activation::gelu; }),
             Contains("without a gate"));
  CHECK_THAT(refused([](Recipe& r) { r.model.mlp_bias = true; }), Contains("experts with biases"));
  CHECK_THAT(refused([](Recipe& r) {
               r.mixed_precision.fp8 = recipe::Fp8Format::hybrid;
               r.mixed_precision.fp8_recipe = recipe::Fp8Recipe::mxfp8;
               r.debug.emulate_fp8 = true;
             }),
             Contains("scales of blocks in models with experts"));
}

TEST_CASE("every setting of a recipe changes the plan of some run") {
  std::vector<std::string> unread;
  for (const recipe::SchemaRow& row : recipe::schema_rows()) {
    if (!row.options.no_effect.empty()) {
      INFO(row.path);
      CHECK(row.help.starts_with("accepted, no effect"));
      continue;
    }
    if (belongs_to_planned_experts(row.path)) continue;
    if (std::ranges::any_of(kElsewhere, [&](const auto& e) { return row.path == e.path; }))
      continue;
    bool read = false;
    for (const Base& base : bases()) {
      const auto plan_text = [&](const Overrides& set) {
        Diagnostics diagnostics;
        const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml", set,
                                          diagnostics, base.world);
        return diagnostics.has_errors() ? ""
                                        : Print(make_plan(r, base.world, r.model.vocab_size)).text;
      };
      const std::string before = plan_text(base.set);
      INFO(row.path);
      REQUIRE_FALSE(before.empty());
      for (const std::string& value : other_values(row)) {
        Overrides set = base.set;
        set.push_back(fmt::format("{}={}", row.path, value));
        const std::string after = plan_text(set);
        read = read || (!after.empty() && after != before);
        if (read) break;
      }
      if (read) break;
    }
    if (!read) unread.push_back(row.path);
  }
  std::string list;
  for (const std::string& path : unread) list += path + "\n";
  INFO(list);
  CHECK(unread.empty());
}

}  // namespace plan_field_readers_test
