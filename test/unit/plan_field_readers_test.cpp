// Tests that every setting of a recipe has a reader: each row of the schema gets other values,
// under several layouts, until the plan of the run differs. A field that never changes a plan has
// no effect, and its help must say so. In turn, a source below the plan reads each of its members.
#include <cctype>
#include <filesystem>
#include <functional>
#include <set>

#include <fmt/core.h>

#include "base/file.h"
#include "interchange/model_source.h"
#include "plan/rules/unsupported.h"
#include "plan/run_plan.h"
#include "plan_print.h"
#include "recipe/load/value.h"
#include "recipe/schema/schema.h"
#include "recipe_cases.h"

namespace plan_field_readers_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using plan_print::Print;
namespace fs = std::filesystem;

namespace {

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
      {1, {"model.multi_latent_attention=true", "model.num_query_groups=8"}},
      {1, {"mixed_precision=fp16_mixed"}},
      {1, {"optimizer.name=muon", "model.mtp_num_layers=2"}},
      {1, {"peft.dim=4", "peft.target_modules=[q_proj, v_proj]"}},
      {1,
       {"model.moe.num_experts=8", "model.moe.router_topk=3", "peft.dim=6",
        "peft.target_modules=[experts]"}},
      {1,
       {"model.moe.num_experts=8", "model.moe.router_topk=3", "model.moe.num_groups=4",
        "model.moe.group_topk=2", "model.moe.group_score_topk=2",
        "model.moe.load_balancing_type=aux_loss", "model.moe.aux_loss_coeff=0.01",
        "model.moe.shared_expert_ffn_hidden_size=64"}},
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
      {8, {"train.device=cuda", "distributed.strategy=fsdp2", "ddp.nccl_ub=true"}},
      {1,
       {"debug.fault.at=adamw", "debug.trace=t.json", "dataset.validation=y",
        "validation.every_steps=20", "checkpoint.every_steps=10", "tokenizer.path=t.json",
        "checkpoint.load=c", "checkpoint.local.dir=/dev/shm/x"}},
  };
  return list;
}

// Fields that change no plan, and a source that reads each of them: it has `.name`, where the name
// is by default the last one of the path.
struct ReadElsewhere {
  const char *path, *source, *name = nullptr;
};
const ReadElsewhere kElsewhere[] = {
    {"dataset.train_samples.format", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.files", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.split", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.subset", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.limit", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.shuffle_seed", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.column", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.prompt", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.completion", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.template", "apps/sample_tokens.cpp", "chat_template"},
    {"dataset.train_samples.together", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.answers_only", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.last_answer_only", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.headers", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.plain_messages", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.end_of_text", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.cut", "apps/sample_tokens.cpp"},
    {"dataset.train_samples.vocab_size", "lib/plan/options/recipe_options.cpp"},
    {"dataset.validation_samples.format", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.files", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.split", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.subset", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.limit", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.shuffle_seed", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.column", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.prompt", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.completion", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.template", "apps/sample_tokens.cpp", "chat_template"},
    {"dataset.validation_samples.together", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.answers_only", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.last_answer_only", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.headers", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.plain_messages", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.end_of_text", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.cut", "apps/sample_tokens.cpp"},
    {"dataset.validation_samples.vocab_size", "lib/plan/options/recipe_options.cpp"},
    {"dataset.cache_dir", "apps/sample_tokens.cpp"},
    {"launch.env", "apps/mtrain-launch/main.cpp", "variables()"},
    {"launch.on_event", "apps/mtrain-launch/main.cpp"},
    {"launch.start_timeout_s", "lib/plan/meeting_plan.cpp"},
    {"launch.save_timeout_s", "lib/plan/meeting_plan.cpp"},
    {"launch.step_timeout_s", "lib/plan/meeting_plan.cpp"},
    {"hardware.gpus_per_node", "lib/plan/rules/world.cpp"},
    {"hardware.disk_gbps", "lib/plan/checkpoint_cost.cpp"},
    {"hardware.mtbf_hours", "lib/plan/checkpoint_cost.cpp"},
    {"debug.strict", "lib/plan/rules/rules.cpp"},
    {"debug.emulate_fp8", "lib/plan/rules/float8.cpp"},
    {"model.from", "lib/recipe/load/load.cpp"},
    {"model.init", "lib/plan/options/recipe_options.cpp"},
    {"model.ignore_keys", "lib/recipe/load/load.cpp"},
    {"model.attention_dropout", "lib/plan/rules/model.cpp"},
    {"mixed_precision.fp8_param_gather", "lib/plan/overlap.cpp"},
    {"checkpoint.model_save_format", "lib/recipe/load/foreign_converters.cpp"},
    {"distributed.dp_size", "lib/plan/rules/world.cpp"},
    {"distributed.pipeline.pp_schedule_csv", "lib/plan/schedule_bounds.cpp"},
    {"distributed.use_decentralized_pg", "lib/plan/rules/context.cpp"},
};

// Members of the plan that are read through a function of their struct, or by the plan's estimates
// alone.
const ReadElsewhere kMembersElsewhere[] = {
    {"ContextOptions.methods", "lib/parallel/apply_parallelism.cpp", "of_layer()"},
    {"ShardedParamsOptions.passes_pair", "lib/parallel/data/sharded_params.cpp", "units_at_once()"},
    {"Lora.alpha", "lib/model/lora_linear.cpp", "scale()"},
    {"Lora.layers", "lib/spec/tensors.cpp", "adapts()"},
    {"TrainOptions.epoch_samples", "lib/plan/options/train_options.h"},  // in last_step()
    {"Layout.ep_shard", "lib/plan/data_parallel_memory.cpp"},
};

// Returns the names that follow a dot or an arrow in a source, and are not assigned there:
// "plan.train.steps" has train, steps. Names of functions end with "()".
using Names = std::set<std::string>;
Names members_named(const fs::path& source) {
  Names names;
  const std::string text = read_file(source);
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) {
      i = text.find('\n', i);
      if (i == std::string::npos) break;
      continue;
    }
    const bool arrow = text.compare(i, 2, "->") == 0;
    const char before = i > 0 ? text[i - 1] : ' ';
    // A designated initializer has nothing before its dot.
    if (!arrow && (text[i] != '.' || !(is_word(before) || before == ')' || before == ']')))
      continue;
    const size_t begin = i + (arrow ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    const size_t next = std::min(text.find_first_not_of(" \n", end), text.size());
    const bool call = text.compare(next, 1, "(") == 0;
    const bool assigned = text.compare(next, 1, "=") == 0 && text.compare(next, 2, "==") != 0;
    if (end > begin && !assigned)
      names.insert(text.substr(begin, end - begin) + (call ? "()" : ""));
  }
  return names;
}

fs::path in_tree(std::string_view path) { return fs::path(MTRAIN_SOURCE_DIR) / path; }

bool is_read(const ReadElsewhere& row) {
  const std::string_view path = row.path;
  const std::string name = row.name ? row.name : std::string(path.substr(path.rfind('.') + 1));
  return members_named(in_tree(row.source)).contains(name);
}

std::vector<std::string> other_values(const recipe::SchemaRow& row) {
  using Kind = recipe::TypeInfo::Kind;
  const recipe::TypeInfo info = row.ops->info();
  switch (info.kind) {
    case Kind::boolean: return {"true", "false"};
    case Kind::integer: return {"1", "2", "3", "4", "8", "16", "5000", "none"};
    case Kind::number: return {"1e-5", "0.25", "0.5", "1", "2.5", "64", "none"};
    case Kind::text: return {"other", "latest", "Ettt|tttttL", "3:4"};
    case Kind::choice: return info.shown;
    case Kind::list:
      if (info.item == Kind::choice) return info.shown;
      return {"[2, 2]",
              "[4, 1]",
              "[2]",
              "[0.5]",
              "[0.5, 0.5]",
              "[a, b]",
              "[1, 2, 3]",
              "[q_proj]",
              "[{match: a, lr: 1}]",
              "[{kind: kill, phase: forward}]"};
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
      CHECK((errors.find("an output layer with another 16-bit type") == std::string::npos) ==
            (head == same || head == ElementType::fp32));
    }
  CHECK(refused([](Recipe& r) { r.distributed.tp_size = 2; }).empty());
  CHECK_THAT(refused([](Recipe& r) { r.model.activation = recipe::Activation::gelu; }),
             Contains("without a gate"));
  CHECK_THAT(refused([](Recipe& r) { r.model.mlp_bias = true; }), Contains("experts with biases"));
}

TEST_CASE("every setting of a recipe changes the plan of some run") {
  std::vector<std::string> unread;
  for (const recipe::SchemaRow& row : recipe::schema_rows()) {
    if (!row.options.no_effect.empty()) {
      INFO(row.path);
      CHECK(row.help.starts_with("accepted, no effect"));
      continue;
    }
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

TEST_CASE("a setting that changes no plan has a source that reads it") {
  for (const ReadElsewhere& row : kElsewhere) {
    CAPTURE(row.path);
    CHECK(recipe::find_row(row.path));
    CHECK(is_read(row));
  }
}

TEST_CASE("a source below the plan reads every member of the plan") {
  Names named;
  for (const char* folder : {"lib", "apps", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(in_tree(folder))) {
      const std::string path = entry.path().lexically_relative(in_tree("")).string();
      const fs::path suffix = entry.path().extension();
      if (path.starts_with("lib/plan/") || path.starts_with("lib/recipe/")) continue;
      if (suffix == ".cpp" || suffix == ".h") named.merge(members_named(entry.path()));
    }
  std::string unread;
  for (const auto& [type, name] : Print::members()) {
    const std::string member = type + "." + name;
    const auto row = std::ranges::find(kMembersElsewhere, member, &ReadElsewhere::path);
    if (row == std::end(kMembersElsewhere) ? !named.contains(name) : !is_read(*row))
      unread += member + "\n";
  }
  INFO(unread);
  CHECK(unread.empty());
}

}  // namespace plan_field_readers_test
