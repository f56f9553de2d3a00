// Asks the installed cuDNN, through its C++ frontend, for plans for GPUs that are only described.
// Tests that the graphs of attention are accepted, and that engines compile. Runs beside
// driver_stand_in.cpp; nothing is executed.
#include <catch2/catch.hpp>

#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "kernels/cuda/cudnn/api.h"
#include "kernels/cuda/cudnn/attention_plan.h"
#include "plan/attention_workspace.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::kernels::cuda;

namespace {

struct Gpu {
  const char* name;
  int architecture, processors;
  int64_t shared_memory, memory, cache, bus;  // bytes; bits

  // cuDNN's form of a GPU's properties is its own, and may differ in another version.
  CudnnPlace place() const {
    const std::string text = fmt::format(
        R"({{"deviceName":"NVIDIA {}","deviceVer":{},"driverVer":13000,"cudaDeviceId":0,)"
        R"("multiProcessorCount":{},"maxSharedMemoryPerBlock":49152,)"
        R"("maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,)"
        R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"warpSize":32,)"
        R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)"
        R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
        R"("totalGlobalMem":{},"l2CacheSize":{},"smClockRateKHz":1980000,)"
        R"("memClockRateKHz":3201000,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
        R"("memoryBusWidth":{},"oversizedSharedMemoryPerBlock":{},"smCountOrigin":0}})",
        name, architecture * 10, processors, shared_memory, memory, cache, bus, shared_memory);
    return {.architecture = architecture, .description = text};
  }
};
constexpr Gpu kH100{"H100", 90, 132, 232448, 85'000'000'000, 52428800, 5120};
constexpr Gpu kH200{"H200", 90, 132, 232448, 150'000'000'000, 62914560, 6144};
constexpr Gpu kB200{"B200", 100, 148, 232448, 191'000'000'000, 132644864, 8192};
constexpr Gpu kA100{"A100", 80, 108, 166912, 80'000'000'000, 41943040, 5120};

// What a caller asks for. Blocks are those of context parallelism: out and gradients are fp32, and
// the last row attends to the last key.
struct Case {
  const char* name;
  int64_t B, Sq, Skv, A, G, D;
  bool causal = true;
  int64_t window = 0;
  bool block = false;
  float cap = 0;
  int64_t documents = 0, longest = 0;
  DType type = DType::bf16;
  int64_t Dv = 0;  // elements of a head of v; 0: D
  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
  int64_t kv_width() const { return G * (D + value_dim()); }
};

AttentionShape shape_of(const Case& c) {
  static int32_t borders[2] = {};
  DocumentRows documents;
  if (c.documents > 0)
    documents = {{borders, c.documents, DType::i32}, {borders + 1, c.documents, DType::i32}};
  return {.B = c.B,
          .Sq = c.Sq,
          .Skv = c.Skv,
          .A = c.A,
          .G = c.G,
          .D = c.D,
          .Dv = c.Dv,
          .causal = c.causal,
          .q_start = c.block && c.causal ? c.Skv - c.Sq : 0,
          .window = c.window,
          .q_documents = documents,
          .kv_documents = documents,
          .longest_document = c.longest,
          .scale = 0.125f,
          .cap = c.cap};
}
// q, k and v, and gradients of their type, lie in one row of a token.
AttentionForward forward_of(const Case& c) {
  const ConstSpan of_type{nullptr, 0, c.type};
  const Span out{nullptr, 0, c.block ? DType::f32 : c.type};
  const int64_t row = c.A * c.D + c.kv_width();
  return {.shape = shape_of(c),
          .q = {of_type, row},
          .k = {of_type, row},
          .v = {of_type, row},
          .out = {out, c.A * c.value_dim()}};
}
AttentionBackward backward_of(const Case& c, bool deterministic) {
  const AttentionForward f = forward_of(c);
  const Span gradient = f.out.data;
  const int64_t row = f.q.token_stride;
  return {.shape = f.shape,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .out = {{nullptr, 0, c.type}, c.A * c.value_dim()},
          .dout = {{nullptr, 0, c.type}, c.A * c.value_dim()},
          .dq = {gradient, c.block ? c.A * c.D : row},
          .dk = {gradient, c.block ? c.kv_width() : row},
          .dv = {gradient, c.block ? c.kv_width() : row},
          .add_dq = c.block,
          .add_dkv = c.block,
          .fixed_order = deterministic};
}

struct Answer {
  std::string engine, refusal;
  int64_t workspace = 0;
};
CudnnTarget target_of(const Gpu& gpu) {
  return {.version = cudnn_library().api.version(), .architecture = gpu.architecture};
}
Answer ask(const Gpu& gpu, const CudnnAttentionKey& key, int64_t max_workspace = INT64_MAX) {
  try {
    const auto plan = make_cudnn_attention_plan(key, gpu.place(), {.max_workspace = max_workspace});
    // Heuristics put the best engine first.
    return {.engine = plan->engine() == 0 ? plan->name()
                                          : fmt::format("{}: {}", plan->engine(), plan->name()),
            .refusal = "",
            .workspace = plan->workspace()};
  } catch (const RunError& e) {
    return {.engine = "", .refusal = e.message()};
  }
}
// "" : the rules leave it to cuDNN.
std::string why_not(const Case& c, const Gpu& gpu, bool backward) {
  const CudnnTarget target = target_of(gpu);
  return backward ? why_not_cudnn(backward_of(c, false), target)
                  : why_not_cudnn(forward_of(c), target);
}

// Returns whether plans can be made here; otherwise says that `test` is skipped.
bool can_ask(const char* test) {
  std::string why = why_no_cudnn_frontend();
  if (why.empty()) why = cudnn_library().problem;
  if (why.empty()) return true;
  std::printf("skipped: %s: %s\n", test, why.c_str());
  return false;
}

// Masks of plain training.
const std::vector<Case> kPlain = {
    {"causal, 1.5B", 8, 1024, 1024, 12, 2, 128},
    {"causal, 8B", 1, 4096, 4096, 32, 8, 128},
    {"causal, same heads", 2, 2048, 2048, 16, 16, 64},
    {"causal, one kv head", 1, 520, 520, 8, 1, 80},
    {"causal, fp16", 1, 2048, 2048, 16, 4, 128, true, 0, false, 0, 0, 0, DType::f16},
    {"causal, off every tile", 2, 258, 258, 4, 2, 64},
    {"causal, D 256", 1, 512, 512, 8, 8, 256},
    {"causal, D 256, grouped", 1, 4096, 4096, 16, 8, 256},
    {"window", 1, 8192, 8192, 32, 8, 128, true, 1024},
    {"window, off every tile", 2, 258, 258, 4, 2, 64, true, 40},
    {"all keys", 2, 1024, 1024, 16, 4, 128, false},
    {"all of more keys", 2, 96, 320, 4, 4, 64, false}};
const std::vector<Case> kPacked = {
    {"pack", 1, 4096, 4096, 12, 2, 128, true, 0, false, 0, 16, 700},
    {"pack, long", 1, 8192, 8192, 32, 8, 128, true, 0, false, 0, 8, 8192},
    {"pack, same heads", 1, 300, 300, 4, 4, 64, true, 0, false, 0, 1, 300},
    {"pack, window", 1, 2048, 2048, 8, 2, 64, true, 300, false, 0, 4, 1000},
    {"pack, all keys", 1, 1024, 1024, 8, 4, 128, false, 0, false, 0, 2, 600}};
// Blocks of keys of context parallelism: of the ring, then of the gathered keys.
const std::vector<Case> kBlocks = {
    {"block, own keys", 1, 8192, 8192, 32, 8, 128, true, 0, true},
    {"block, earlier keys", 1, 8192, 4096, 32, 8, 128, false, 0, true},
    {"block, later rows", 1, 4096, 8192, 32, 8, 128, false, 0, true},
    {"block, last keys", 1, 4096, 32768, 32, 8, 128, true, 0, true},
    {"block, same heads", 2, 1024, 4096, 16, 16, 128, true, 0, true},
    {"block, D 64", 2, 1024, 3072, 16, 4, 64, true, 0, true},
    {"block, window", 1, 4096, 32768, 32, 8, 128, true, 4096, true},
    {"block, window before", 1, 4096, 32768, 32, 8, 128, true, 1024, true},
    {"block, D 256", 1, 1024, 4096, 16, 8, 256, true, 0, true},
    {"block, fp16", 1, 1024, 4096, 16, 4, 128, true, 0, true, 0, 0, 0, DType::f16}};
const std::vector<Case> kCapped = {
    {"cap, D 256", 1, 8192, 8192, 8, 4, 256, true, 0, false, 50},
    {"cap, D 256, window", 1, 8192, 8192, 8, 4, 256, true, 4096, false, 50},
    {"cap, D 128", 1, 8192, 8192, 32, 16, 128, true, 0, false, 50},
    {"cap, D 128, window", 1, 8192, 8192, 32, 16, 128, true, 4096, false, 50},
    {"cap, all keys", 1, 2048, 2048, 8, 8, 128, false, 0, false, 50},
    {"cap, block", 1, 2048, 8192, 32, 16, 128, true, 0, true, 50},
    {"cap, block, window", 1, 2048, 8192, 8, 4, 256, true, 4096, true, 50}};

// The heads of DeepSeek-V3 and its relatives.
const std::vector<Case> kLatent = {
    {"latent", 1, 4096, 4096, 16, 16, 192, true, 0, false, 0, 0, 0, DType::bf16, 128},
    {"latent, B 2", 2, 1024, 1024, 8, 8, 192, true, 0, false, 0, 0, 0, DType::bf16, 128},
    {"latent, pack", 1, 4096, 4096, 16, 16, 192, true, 0, false, 0, 16, 700, DType::bf16, 128},
    {"latent, block", 1, 2048, 4096, 16, 16, 192, true, 0, true, 0, 0, 0, DType::bf16, 128}};

void require_plans(const std::vector<Case>& cases, const Gpu& gpu) {
  for (const Case& c : cases) {
    CAPTURE(gpu.name, c.name);
    REQUIRE(why_not(c, gpu, false) == "");
    REQUIRE(ask(gpu, key_of(forward_of(c))).refusal == "");
    for (const bool deterministic : {false, true}) {
      CAPTURE(deterministic);
      const bool in_table = why_not(c, gpu, true) == "";
      REQUIRE(in_table);
      const Answer answer = ask(gpu, key_of(backward_of(c, deterministic), target_of(gpu)));
      REQUIRE(answer.refusal == "");
      // The memory plan has Hopper's engines, and a bound for documents in a fixed order.
      if (gpu.architecture != 90 || (deterministic && c.documents > 0)) continue;
      const int64_t planned =
          plan::cudnn_plan_workspace({.rows = c.B * c.Sq,
                                      .keys = c.B * c.Skv,
                                      .sequence = c.documents > 0 ? c.longest : c.Skv,
                                      .A = c.A,
                                      .G = c.G,
                                      .D = c.D,
                                      .cudnn = true,
                                      .fixed_order = deterministic,
                                      .documents = c.documents > 0},
                                     c.A);
      CAPTURE(planned, answer.workspace);
      CHECK(answer.workspace >= planned * 0.9);
      CHECK(answer.workspace <= planned * 1.05 + (1 << 19));  // short rows fill tiles, too
    }
  }
}

}  // namespace

TEST_CASE("cuDNN has plans for every mask of plain training on a described H200") {
  if (can_ask("plans of plain training")) require_plans(kPlain, kH200);
}
TEST_CASE("cuDNN has plans for packed documents on a described H200, in memory of the tokens") {
  if (!can_ask("plans of packed documents")) return;
  require_plans(kPacked, kH200);
  for (const Case& c : kPacked) {
    CAPTURE(c.name);
    const Answer answer = ask(kH200, key_of(backward_of(c, false), target_of(kH200)));
    CAPTURE(answer.workspace);
    // Sums of dq in fp32, dk and dv of each query head (the frontend makes room for fp32), those
    // of out x dout.
    const int64_t per_query_head = c.Sq * c.A * c.D;
    REQUIRE(answer.workspace <= per_query_head * (4 + 4 + 4) + c.Sq * c.A * 4 + (1 << 20));
  }
}
TEST_CASE("cuDNN has plans for blocks of keys on a described H200, with results in fp32") {
  if (can_ask("plans of blocks of keys")) require_plans(kBlocks, kH200);
}
TEST_CASE("cuDNN has plans for capped scores on a described H200") {
  if (can_ask("plans of capped scores")) require_plans(kCapped, kH200);
}

TEST_CASE("cuDNN has plans for values of another size than keys on described H200s and B200s") {
  if (!can_ask("plans of latent attention")) return;
  for (const Gpu& gpu : {kH200, kB200}) require_plans(kLatent, gpu);
  CHECK_THAT(why_not(kLatent[0], kA100, false), Catch::Contains("heads of 192"));
}

TEST_CASE("cuDNN has plans for a described A100 and a described B200") {
  if (!can_ask("plans for an A100 and a B200")) return;
  const std::vector<Case> cases{{"causal", 4, 1024, 1024, 12, 4, 64},
                                {"block", 1, 1024, 4096, 16, 4, 128, true, 0, true}};
  for (const Gpu& gpu : {kA100, kB200}) require_plans(cases, gpu);
}

TEST_CASE("the long backwards need memory, and deterministic ones less for fewer heads") {
  if (!can_ask("memory of backwards")) return;
  constexpr int64_t kGiB = int64_t(1) << 30;
  const Answer longest =
      ask(kH200, key_of(backward_of({"", 1, 131072, 131072, 32, 8, 128}, false), target_of(kH200)));
  REQUIRE(longest.refusal == "");
  // Sums of dq in fp32, dk and dv of each query head, and sums of out x dout.
  CHECK(longest.workspace > 4 * kGiB);
  CHECK(longest.workspace < 4.1 * kGiB);
  CudnnAttentionKey key =
      key_of(backward_of({"", 2, 8192, 8192, 32, 8, 128}, true), target_of(kH200));
  const Answer whole = ask(kH200, key);
  REQUIRE(whole.refusal == "");
  CHECK(whole.workspace > kGiB);
  key.A /= 8, key.G /= 8, key.lse_heads /= 8;
  CHECK(ask(kH200, key).workspace < whole.workspace / 4);
  CHECK_THAT(ask(kH200, key, 1 << 20).refusal, Catch::Contains("MiB of workspace"));
}

TEST_CASE("cuDNN refuses graphs that break its rules, with a message") {
  if (!can_ask("refusals")) return;
  const Answer answer = ask(kH200, key_of(forward_of({"", 1, 64, 64, 2, 2, 12})));
  CAPTURE(answer.refusal);
  REQUIRE(answer.refusal != "");  // heads of 24 bytes
}

// Returns the engine and its workspace, or who refuses.
std::string cell(const Case& c, const Gpu& gpu, int pass) {
  if (const std::string why = why_not(c, gpu, pass > 0); !why.empty()) return "own kernels: " + why;
  const Answer a = ask(
      gpu, pass == 0 ? key_of(forward_of(c)) : key_of(backward_of(c, pass == 2), target_of(gpu)));
  if (a.refusal.empty())
    return a.workspace == 0
               ? a.engine
               : fmt::format("{}, {:.1f} MiB", a.engine, double(a.workspace) / (1 << 20));
  return "refused: " + a.refusal.substr(0, std::min<size_t>(a.refusal.find('\n'), 70));
}

// docs/gpu-day.md says how to print it.
TEST_CASE("the table of engines", "[.table]") {
  if (!can_ask("the table of engines")) return;
  std::printf("%s, %s\n\n", cudnn_description().c_str(), cudnn_frontend_description().c_str());
  std::printf("| attention | B x rows x keys, heads, D | pass |");
  const Gpu* const gpus[] = {&kH100, &kH200, &kB200};
  for (const Gpu* gpu : gpus) std::printf(" %s |", gpu->name);
  std::printf("\n|---|---|---|---|---|---|\n");
  for (const auto* cases : {&kPlain, &kPacked, &kBlocks, &kCapped, &kLatent})
    for (const Case& c : *cases)
      for (const int pass : {0, 1, 2}) {
        std::printf("| %s | %d x %d x %d, %d/%d, %d | %s |", c.name, int(c.B), int(c.Sq),
                    int(c.Skv), int(c.A), int(c.G), int(c.D),
                    pass == 0   ? "forward"
                    : pass == 1 ? "backward"
                                : "backward, fixed order");
        for (const Gpu* gpu : gpus) std::printf(" %s |", cell(c, *gpu, pass).c_str());
        std::printf("\n");
        std::fflush(stdout);
      }
}
