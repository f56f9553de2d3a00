// Tests sections of other systems that set fields of several sections here: Megatron-Bridge's
// env_vars, AutoModel's packed_sequence, and NeMo 2's strategy.
#include <fmt/core.h>

#include "interchange/model_source.h"
#include "recipe_cases.h"

namespace recipe_foreign_sections_test {

using namespace mtrain;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

Diagnostics diagnostics_of(const std::string& more, const Overrides& set = {}, int64_t world = 0) {
  Diagnostics diagnostics;
  plan::load_recipe_text(interchange::model_source(), kBase + more, "r.yaml", set, diagnostics,
                         world);
  return diagnostics;
}

Recipe loaded(const std::string& more, const Overrides& set = {}) {
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), kBase + more, "r.yaml", set,
                                          diagnostics, 0);
  INFO(more << listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

std::string errors(const std::string& more, const Overrides& set = {}) {
  return diagnostics_of(more, set).text(Severity::error);
}
std::string warnings(const std::string& more, const Overrides& set = {}) {
  return diagnostics_of(more, set).text(Severity::warning);
}

using Variables = std::map<std::string, std::string>;

}  // namespace

TEST_CASE("Megatron-Bridge's variables for queues and norms set fields, in any spelling") {
  const std::string megatron = "distributed: {strategy: megatron_ddp}\n";
  const std::string bridge =
      megatron +
      "env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: 1, NVTE_FWD_LAYERNORM_SM_MARGIN: '20', "
      "NVTE_BWD_LAYERNORM_SM_MARGIN: 20, NCCL_NVLS_ENABLE: 0, MINE: x}\n";
  const Recipe r = loaded(bridge);
  CHECK(r.launch.cuda_device_max_connections == 1);
  CHECK(r.launch.layernorm_sm_margin == 20);
  CHECK(r.launch.variables() == Variables{{"NCCL_NVLS_ENABLE", "0"}, {"MINE", "x"}});
  const Recipe printed = [&] {
    Diagnostics diagnostics;
    return plan::load_recipe_text(interchange::model_source(), print_recipe(r), "p.yaml", {},
                                  diagnostics, 0);
  }();
  CHECK(printed.launch.cuda_device_max_connections == 1);
  CHECK(printed.launch.layernorm_sm_margin == 20);

  const Recipe one_by_one =
      loaded(megatron, {"env_vars.CUDA_DEVICE_MAX_CONNECTIONS=1", "env_vars.NCCL_ALGO=Ring",
                        "cfg.env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN=8", "launch.env.MINE=y"});
  CHECK(one_by_one.launch.cuda_device_max_connections == 1);
  CHECK(one_by_one.launch.layernorm_sm_margin == 8);
  CHECK(one_by_one.launch.variables() == Variables{{"NCCL_ALGO", "Ring"}, {"MINE", "y"}});

  // Later layers win, under either name.
  CHECK(
      loaded(bridge, {"launch.cuda_device_max_connections=8"}).launch.cuda_device_max_connections ==
      8);
  CHECK(loaded(bridge, {"launch.layernorm_sm_margin=4"}).launch.layernorm_sm_margin == 4);
  CHECK(loaded("launch.layernorm_sm_margin: 4\n",
               {"env_vars={NVTE_FWD_LAYERNORM_SM_MARGIN: 16, NVTE_BWD_LAYERNORM_SM_MARGIN: 16}"})
            .launch.layernorm_sm_margin == 16);
  CHECK(loaded(bridge, {"env_vars.MINE=z"}).launch.variables().at("MINE") == "z");
  CHECK(loaded("env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: null}\n", {})
            .launch.cuda_device_max_connections == std::nullopt);
}

TEST_CASE("a variable and its setting that disagree are set twice, and equal ones agree") {
  for (const std::string set : {"launch: {cuda_device_max_connections: 8}\n"
                                "env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: 32}\n",
                                "env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: 32}\n"
                                "launch: {cuda_device_max_connections: 8}\n",
                                "launch: {layernorm_sm_margin: 16}\n"
                                "env_vars: {NVTE_FWD_LAYERNORM_SM_MARGIN: 8}\n",
                                "env_vars: {NVTE_BWD_LAYERNORM_SM_MARGIN: 8}\n"
                                "launch: {layernorm_sm_margin: 16}\n"}) {
    INFO(set);
    CHECK_THAT(errors(set), Contains("is set twice to different values") && Contains("env_vars."));
  }
  CHECK(errors("launch: {cuda_device_max_connections: 32, layernorm_sm_margin: 16}\n"
               "env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: 32, NVTE_FWD_LAYERNORM_SM_MARGIN: 16}\n")
            .empty());
  CHECK_THAT(errors("env_vars: {A: hunter2}\nlaunch.env.A: other\n"),
             Contains("A is set twice") && !Contains("hunter2") && !Contains("other"));
}

TEST_CASE("margins of forward and backward that differ give one margin, with a warning") {
  const auto expect_larger = [](const std::string& more, const Overrides& set) {
    const Diagnostics diagnostics = diagnostics_of(more, set);
    INFO(listed(diagnostics));
    CHECK(count(diagnostics, Severity::warning) == 1);
    CHECK_THAT(diagnostics.text(Severity::warning),
               Contains("20, the larger of 8 in forward and 20 in backward"));
    CHECK(loaded(more, set).launch.layernorm_sm_margin == 20);
  };
  const Overrides forward{"env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN=8"},
      both{"env_vars.NVTE_BWD_LAYERNORM_SM_MARGIN=20", "env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN=8"};
  expect_larger("env_vars: {NVTE_FWD_LAYERNORM_SM_MARGIN: 8, NVTE_BWD_LAYERNORM_SM_MARGIN: 20}\n",
                {});
  expect_larger("", both);
  expect_larger("env_vars: {NVTE_FWD_LAYERNORM_SM_MARGIN: 20, NVTE_BWD_LAYERNORM_SM_MARGIN: 20}\n",
                forward);
}

TEST_CASE("the value of a variable with a setting must be a number, and is not quoted") {
  for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_FWD_LAYERNORM_SM_MARGIN",
                           "NVTE_BWD_LAYERNORM_SM_MARGIN"})
    for (const std::string value : {"hunter2", "[hunter2]", "{a: hunter2}", "true", "1.5"}) {
      INFO(name << " " << value);
      for (const std::string& text : {errors(fmt::format("env_vars: {{{}: {}}}\n", name, value)),
                                      errors("", {fmt::format("env_vars.{}={}", name, value)})})
        CHECK_THAT(text, Contains(std::string("env_vars.") + name) &&
                             Contains("is not a whole number") && !Contains("hunter2"));
    }
  CHECK_THAT(errors("env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: 64}\n"),
             Contains("env_vars.CUDA_DEVICE_MAX_CONNECTIONS") && Contains("32"));
  CHECK_THAT(errors("env_vars: {NVTE_FWD_LAYERNORM_SM_MARGIN: -1}\n"),
             Contains("env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN"));
  setenv("MTRAIN_TEST_QUEUES", "16", 1);
  CHECK(loaded("env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: '${env:MTRAIN_TEST_QUEUES}'}\n")
            .launch.cuda_device_max_connections == 16);
  CHECK_THAT(errors("launch.env: {NVTE_FWD_LAYERNORM_SM_MARGIN: 16}\n"),
             Contains("has a setting of its own") && Contains("launch.layernorm_sm_margin"));
}

TEST_CASE("variables that nothing reads are listed in one warning, and all reach the ranks") {
  const std::string bridge =
      "env_vars: {NVTE_USE_FAST_MATH: 1, NVTE_ALLOW_NONDETERMINISTIC_ALGO: 0, "
      "TORCH_NCCL_AVOID_RECORD_STREAMS: 1, PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True', "
      "TORCHINDUCTOR_CACHE_DIR: hunter2, USE_MNNVL: 1, OMP_NUM_THREADS: 1, NCCL_NVLS_ENABLE: 0, "
      "CUBLAS_WORKSPACE_CONFIG: ':4096:8', OMPI_MCA_btl: tcp, TORCHES: 3}\n";
  const Diagnostics diagnostics = diagnostics_of(bridge);
  INFO(listed(diagnostics));
  CHECK(count(diagnostics, Severity::warning) == 1);
  const std::string text = diagnostics.text(Severity::warning);
  for (const char* name :
       {"NVTE_USE_FAST_MATH", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR", "USE_MNNVL", "OMP_NUM_THREADS"})
    CHECK_THAT(text, Contains(name));
  for (const char* absent : {"NCCL_NVLS", "CUBLAS", "OMPI", "TORCHES", "hunter2"})
    CHECK_THAT(text, !Contains(absent));
  CHECK(loaded(bridge).launch.env.size() == 11);
  CHECK_THAT(warnings("launch.env: {WANDB_MODE: offline}\n"), Contains("WANDB_MODE"));
  CHECK(warnings("launch.env: {NCCL_DEBUG: INFO, MINE: 1}\n").empty());
}

TEST_CASE("AutoModel's strategies of packing pack as it does, and leave out long documents") {
  const auto packs = [](const std::string& keys, const Overrides& set = {}) {
    return loaded("packed_sequence: {packed_sequence_size: 64, " + keys + "}\n", set)
        .packed_sequence;
  };
  CHECK(packs("max_packs: null").packing_strategy == PackingStrategy::first_fit);
  CHECK_FALSE(packs("max_packs: null").drop_long_samples);
  CHECK_FALSE(packs("max_packs: null").max_packs);
  CHECK(packs("packing_strategy: thd").packing_strategy == PackingStrategy::thd);
  CHECK(packs("packing_strategy: thd").drop_long_samples);
  CHECK(packs("packing_strategy: neat, drop_long_samples: null").drop_long_samples);
  CHECK_FALSE(packs("packing_strategy: neat, drop_long_samples: false").drop_long_samples);
  CHECK(packs("drop_long_samples: true").packing_strategy == PackingStrategy::first_fit);
  CHECK(packs("max_packs: 104, num_proc: 4, prepacked: false").max_packs == 104);
  CHECK(packs("max_packs: 104", {"dataset.packing_strategy=neat", "dataset.max_packs=5",
                                 "dataset.drop_long_samples=false", "dataset.num_proc=8"})
            .max_packs == 5);
  const std::string all =
      "packed_sequence: {packing_strategy: thd, packed_sequence_size: 64, max_packs: 104, "
      "num_proc: 1}\n";
  const Diagnostics diagnostics = diagnostics_of(all);
  INFO(listed(diagnostics));
  CHECK(count(diagnostics, Severity::warning) == 0);
  CHECK_THAT(diagnostics.text(Severity::resolved),
             Contains("packed_sequence.num_proc") && Contains("drop_long_samples: true, because"));
  CHECK_THAT(errors("packed_sequence.packing_strategy: bfd\n"),
             Contains("packing_strategy") && Contains("first_fit") && Contains("neat"));
  CHECK_THAT(errors("packed_sequence.packing_strategy: my.Packing\n"), Contains("neat"));
  CHECK_THAT(errors("packed_sequence.max_packs: 0\n"), Contains("packed_sequence.max_packs"));
  CHECK_THAT(errors("packed_sequence.prepacked: true\n"), Contains("mtrain data build"));
  for (const char* idle : {"packing_strategy: thd", "max_packs: 3"}) {
    const std::string text = fmt::format("packed_sequence: {{{}}}\n", idle);
    CHECK_THAT(warnings(text), Contains("packed_sequence_size is 0"));
    CHECK_THAT(errors(text, {"debug.strict=true"}), Contains("packed_sequence_size is 0"));
  }
}

TEST_CASE("NeMo 2's strategy sets ddp and the sizes of parallel groups") {
  for (const char* prefix : {"strategy", "trainer.strategy", "recipe.strategy",
                             "recipe.trainer.strategy", "cfg.trainer.strategy"})
    for (const char* ddp : {"ddp_config", "ddp"}) {
      INFO(prefix << " " << ddp);
      const auto named = [&](const char* key) { return fmt::format("{}.{}", prefix, key); };
      const Recipe r =
          loaded("", {fmt::format("{}.{}.overlap_grad_sync=false", prefix, ddp),
                      fmt::format("{}.{}.overlap_param_gather=false", prefix, ddp),
                      named("tensor_model_parallel_size=2"), named("sequence_parallel=true"),
                      named("context_parallel_size=2"), named("pipeline_model_parallel_size=1"),
                      named("use_te_rng_tracker=true")});
      CHECK(r.distributed.strategy == Strategy::megatron_ddp);
      CHECK(r.ddp.overlap_grad_reduce == false);
      CHECK(r.distributed.tp_size == 2);
      CHECK(r.distributed.cp_size == 2);
      CHECK(r.distributed.sequence_parallel);
    }
  for (const char* text :
       {"strategy: {tensor_model_parallel_size: 4, ddp_config: {bucket_size: 1000}}\n",
        "trainer: {strategy: {tensor_model_parallel_size: 4, ddp: {bucket_size: 1000}}}\n",
        "trainer.strategy: {tensor_model_parallel_size: 4, ddp.bucket_size: 1000}\n"}) {
    const Recipe r = loaded(text);
    CHECK(r.distributed.tp_size == 4);
    CHECK(r.ddp.bucket_size == 1000);
  }
  CHECK_THAT(errors("strategy: {tensor_model_parallel_size: 2}\ndistributed: {tp_size: 4}\n"),
             Contains("is set twice to different values"));
  CHECK_THAT(errors("", {"strategy.ckpt_async_save=true"}),
             Contains("strategy.ckpt_async_save") && Contains("there is no such key"));
  CHECK(loaded("", {"strategy=megatron_ddp"}).distributed.strategy == Strategy::megatron_ddp);
  CHECK_THAT(errors("strategy: megatron_ddp\n"), Contains("distributed.strategy"));
}

}  // namespace recipe_foreign_sections_test
