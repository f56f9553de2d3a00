// Tests the rules for when cuDNN computes attention, and the work around its plans, with a stand-in
// for the plans.
#include <catch2/catch.hpp>

#include <optional>

#include "base/log.h"
#include "cudnn_plan_stand_in.h"
#include "plan/attention_workspace.h"
#include "test/support/cudnn_testing.h"

namespace kernels_cudnn_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;
using namespace mtrain::test::cudnn_testing;

namespace {

struct Lines : log::Overlay {
  Lines() { log::set_overlay(this); }
  ~Lines() override { log::set_overlay(nullptr); }
  void interrupt(const std::function<void()>& write_line) override { write_line(), ++count; }
  int count = 0;
};

int set_stream(cudnnContext*, CUstream_st* stream) {
  CudnnStandIn::it().stream = stream;
  return 0;
}
const cuda::CudnnApi kApi{
    .create = nullptr, .set_stream = set_stream, .version = nullptr, .error_string = nullptr};
constexpr cuda::CudnnTarget kH200{.version = 91900, .architecture = 90};

// Fresh engines, and attention through them on an H200.
struct Bench {
  CudnnStandIn& library = CudnnStandIn::it();
  std::optional<cuda::CudnnAttention> attention;
  explicit Bench(int64_t max_workspace = cuda::CudnnAttention::kMaxWorkspace) {
    library = CudnnStandIn{};
    captures = gpu_has_failed = false;
    attention.emplace(kApi, nullptr, kH200, kDevice, max_workspace, make_plan_stand_in);
  }
  ~Bench() {
    attention.reset();
    CHECK(library.alive == 0);  // no plan is left behind
    CHECK(taken == 0);
  }
};

}  // namespace

TEST_CASE("plans get what callers ask for, and callers get results where they expect them") {
  for (const auto* cases : {&kCases, &kBlocks, &kPacks})
    for (const Case& c : *cases)
      for (const DType type : {DType::bf16, DType::f16}) {
        CAPTURE(c.name, dtype_name(type));
        Bench bench;
        for (const bool deterministic : {true, false})
          compare(*bench.attention, c, deterministic, type);
      }
}

TEST_CASE("gradients that a plan cannot write are written beside the caller's") {
  const auto key = [](bool shared, bool wide, bool fixed = false,
                      const cuda::CudnnTarget& target = kH200) {
    Operands o({"", 1, 8, 20, 2, shared ? 1 : 2, 16, true, 0, {}, 12, 0, wide});
    return cuda::key_of(o.backward(fixed), target);
  };
  // fp32 for heads of their own; 16 bits where query heads share a kv head, where engines would add
  // to fp32 in any order, and where engines for fp32 are slow.
  CHECK((key(false, true).dq_type == DType::f32 && key(false, true).dkv_type == DType::f32));
  CHECK((key(true, true).dq_type == DType::bf16 && key(true, true).dkv_type == DType::bf16));
  CHECK(key(false, true, true).dq_type == DType::bf16);
  CHECK(key(false, true, false, {92800, 100}).dkv_type == DType::bf16);
  CHECK((key(true, true).dq == 2 * 16 && key(true, true).dk == 16));  // contiguous
  CHECK(key(true, false).dq == 2 * 16 + kQueryGradientGap);           // the caller's rows
  CHECK((key(true, true).bottom_right && key(true, true).out_type == DType::bf16));
}

TEST_CASE("packs of about as many and as long documents share a plan") {
  const auto with = [](std::vector<int32_t> borders, int64_t longest) {
    return Operands(
        {"", 1, 1024, 1024, 4, 2, 16, true, 0, std::move(borders), 0, 0, false, 0, longest});
  };
  Operands five = with({0, 100, 200, 300, 400, 1024}, 624);
  Operands seven = with({0, 1, 2, 3, 4, 500, 600, 1024}, 900), four = with({0, 1, 2, 3, 1024}, 900);
  Operands shorter = with({0, 200, 400, 600, 800, 1024}, 224);
  REQUIRE(cuda::key_of(five.forward()) == cuda::key_of(seven.forward()));
  REQUIRE(cuda::key_of(five.forward()) != cuda::key_of(four.forward()));
  REQUIRE(cuda::key_of(five.forward()) != cuda::key_of(shorter.forward()));
  REQUIRE(cuda::key_of(five.backward(false), kH200) == cuda::key_of(seven.backward(false), kH200));
  CHECK((cuda::key_of(five.forward()).B == 8 && cuda::key_of(five.forward()).longest == 1024));
  CHECK(cuda::key_of(shorter.forward()).longest == 256);
  CHECK(cuda::key_of(with({0, 500, 1024}, 0).forward()).longest == 1024);  // not known
}

TEST_CASE("beside a plan's workspace, attention takes the planned memory") {
  CHECK(plan::kCudnnWorkspaceLimit == cuda::CudnnAttention::kMaxWorkspace);
  for (const Case& c :
       {Case{"square", 2, 256, 256, 2, 2, 16}, Case{"grouped", 1, 256, 256, 6, 2, 16},
        Case{"packed", 1, 256, 256, 2, 2, 16, true, 0, {0, 100, 256}},
        Case{"packed, grouped", 1, 256, 256, 4, 1, 16, true, 0, {0, 256}},
        Case{"blocks", 2, 128, 512, 2, 2, 16, true, 0, {}, 384, 0, true, 4},
        Case{"blocks, grouped", 2, 128, 512, 4, 2, 16, true, 0, {}, 384, 0, true, 4}})
    for (const bool fixed_order : {false, true}) {
      constexpr int64_t own = 5000;
      CAPTURE(c.name, fixed_order);
      Bench bench;
      bench.library.engines = {{.workspace = own}};
      bench.library.computes = false;
      Operands o(c);
      bytes_taken = 0;
      REQUIRE(bench.attention->run(o.backward(fixed_order), nullptr));
      const int64_t planned = plan::cudnn_form_workspace({.rows = c.B * c.Sq,
                                                          .keys = c.B * c.Skv,
                                                          .sequence = c.Skv,
                                                          .A = c.A,
                                                          .G = c.G,
                                                          .D = c.D,
                                                          .cudnn = true,
                                                          .fixed_order = fixed_order,
                                                          .documents = !c.borders.empty(),
                                                          .blocks = c.wide,
                                                          .gathered = c.wide});
      // The rest is the table of documents.
      CHECK(bytes_taken >= planned + own);
      CHECK(bytes_taken <= planned + own + 1024);
    }
}

TEST_CASE("packed documents that are not for cuDNN are named with the reason") {
  Operands o({"", 1, 512, 512, 2, 1, 16, true, 0, {0, 200, 400, 512}});
  const auto why = [&](auto change, cuda::CudnnTarget t) {
    AttentionForward f = o.forward();
    change(f);
    return cuda::why_not_cudnn(f, t);
  };
  const auto nothing = [](AttentionForward&) {};
  REQUIRE(why(nothing, kH200) == "");
  using Catch::Contains;
  for (int architecture : {80, 89, 120, 121})
    CHECK_THAT(why(nothing, {91900, architecture}), Contains("packed documents on sm_"));
  CHECK(why(nothing, {91900, 100}) == "");
  CHECK_THAT(why([](auto& f) { f.shape.q_documents.begin.count = 0; }, kH200),
             Contains("without documents"));
  CHECK_THAT(why([](auto& f) { f.shape.document_gaps = true; }, kH200),
             Contains("divided among ranks"));
  CHECK_THAT(why([](auto& f) { f.shape.kv_documents.begin = at(0, DType::i32); }, kH200),
             Contains("divided among ranks"));
  CHECK_THAT(why([](auto& f) { f.shape.q_documents.begin.count = 5; }, kH200),
             Contains("fewer than 128 rows on average"));
  CHECK_THAT(why([](auto& f) { f.shape.D = 8; }, kH200), Contains("heads of 8"));
  CHECK_THAT(why([](auto& f) { f.shape.cap = 50; }, kH200), Contains("capped scores of packed"));
  CHECK_THAT(why([](auto& f) { f.q.token_stride = 1 << 24; }, kH200),
             Contains("rows of 16777216 elements"));
  // cuDNN gets the lengths, so there are no keys after the last.
  CHECK(cuda::why_not_cudnn(o.backward(), {91500, 90}) == "");
}

TEST_CASE("exactly the inputs that affect the plan change the key") {
  Operands o({"", 2, 8, 8, 2, 1, 8});
  const AttentionBackward b = o.backward();
  const auto key = cuda::key_of(b, kH200);
  REQUIRE(key == cuda::key_of(b, kH200));
  REQUIRE(key != cuda::key_of(o.backward(false), kH200));
  REQUIRE(key != cuda::key_of(o.forward()));
  const auto differs = [&](auto change) {
    AttentionBackward other = b;
    change(other);
    return cuda::key_of(other, kH200) != key;
  };
  CHECK(differs([](auto& x) { x.shape.B = 1; }));
  CHECK(differs([](auto& x) { x.shape.Skv = 4; }));
  CHECK(differs([](auto& x) { x.shape.G = 2; }));
  CHECK(differs([](auto& x) { x.shape.causal = false; }));
  CHECK(differs([](auto& x) { x.shape.window = 4; }));
  CHECK(differs([](auto& x) { x.shape.scale = 1; }));
  CHECK(differs([](auto& x) { x.shape.cap = 1; }));
  CHECK(differs([](auto& x) { x.shape.Sq = 4, x.shape.q_start = 4; }));
  CHECK(differs([](auto& x) { x.add_dkv = true; }));
  CHECK(differs([](auto& x) { x.dq.data.dtype = DType::f32; }));
  CHECK(differs([](auto& x) { x.q.token_stride += 8; }));
  CHECK(differs([](auto& x) { x.dv.token_stride += 8; }));
  CHECK(!differs([](auto& x) { x.q.data = x.dout.data; }));
}

TEST_CASE("attention that is not for cuDNN is named with the reason") {
  Operands o({"", 1, 8, 8, 2, 1, 8});
  const auto why = [&](auto change, cuda::CudnnTarget t) {
    AttentionForward f = o.forward();
    change(f);
    return cuda::why_not_cudnn(f, t);
  };
  const auto nothing = [](AttentionForward&) {};
  REQUIRE(why(nothing, kH200) == "");
  using Catch::Contains;
  CHECK_THAT(why(nothing, {90800, 90}), Contains("9.8 is older"));
  CHECK_THAT(why(nothing, {91900, 75}), Contains("sm_75"));
  CHECK_THAT(why([](auto& f) { f.q.data.dtype = DType::f32; }, kH200), Contains("q is fp32"));
  CHECK_THAT(why([](auto& f) { f.out.data.dtype = DType::f16; }, kH200), Contains("out is fp16"));
  CHECK_THAT(why([](auto& f) { f.v.data = at(2); }, kH200), Contains("v is not on 16-byte"));
  CHECK_THAT(why([](auto& f) { f.k.token_stride = 20; }, kH200), Contains("k is not on 16-byte"));
  CHECK_THAT(why([](auto& f) { f.shape.q_start = 3; }, kH200), Contains("a position of their own"));
  CHECK_THAT(why([](auto& f) { f.shape.Sq = 9, f.shape.q_start = -1; }, kH200),
             Contains("more queries than keys"));
  CHECK_THAT(why([](auto& f) { f.shape.Sq = f.shape.Skv = 1; }, kH200), Contains("one token"));
  CHECK_THAT(why([](auto& f) { f.shape.D = 12; }, kH200), Contains("heads of 12"));
  const auto narrow = [](AttentionForward& f) { f.shape.D = 192, f.shape.Dv = 128; };
  CHECK(why(narrow, kH200) == "");
  CHECK_THAT(why(narrow, {91900, 80}), Contains("heads of 192"));
  CHECK_THAT(why([](auto& f) { f.shape.D = 64, f.shape.Dv = 32; }, kH200),
             Contains("keys of 64 and values of 32"));
  // Blocks of keys, whose results are fp32 and lie beside others.
  CHECK(why([](auto& f) { f.shape.Sq = 4, f.shape.q_start = 4, f.shape.window = 3; }, kH200) == "");
  CHECK(why([](auto& f) { f.out.data.dtype = DType::f32, f.shape.lse_stride = 9; }, kH200) == "");
  CHECK(why([](auto& f) { f.shape.cap = 50; }, kH200) == "");
  const auto large = [](AttentionForward& f) { f.shape.D = 256; };
  CHECK(why(large, kH200) == "");
  CHECK(why(large, {91900, 100}) == "");
  CHECK_THAT(why(large, {91900, 80}), Contains("up to 128"));
  const auto window = [](AttentionForward& f) { f.shape.window = 4; };
  CHECK(why(window, kH200) == "");
  CHECK_THAT(why([&](auto& f) { window(f), f.shape.causal = false; }, kH200), Contains("window"));
  CHECK_THAT(why([&](auto& f) { window(f), f.shape.Sq = 9; }, kH200), Contains("more queries"));

  AttentionBackward b = o.backward();
  REQUIRE(cuda::why_not_cudnn(b, kH200) == "");
  CHECK_THAT(cuda::why_not_cudnn(b, {91500, 90}), Contains("multiples of 128"));
  b.add_dq = b.add_dkv = true;
  CHECK(cuda::why_not_cudnn(b, kH200) == "");
  b.dk.data.dtype = DType::f32;
  CHECK_THAT(cuda::why_not_cudnn(b, kH200), Contains("of two types"));
  b.dv.data.dtype = DType::f32;
  CHECK(cuda::why_not_cudnn(b, kH200) == "");
  b.shape.Sq = 7;
  CHECK_THAT(cuda::why_not_cudnn(b, kH200), Contains("multiples of 4"));
}

TEST_CASE("a plan is made once, and executed on the caller's stream") {
  Bench bench;
  Operands o(kCases[0]), other(kCases[0]);
  auto* const stream = reinterpret_cast<CUstream_st*>(&o);
  REQUIRE(bench.attention->run(o.forward(), stream));
  REQUIRE(bench.attention->run(other.forward(), stream));  // another address, the same plan
  REQUIRE((bench.library.plans == 1 && bench.library.executions == 2));
  REQUIRE(bench.library.stream == stream);
  REQUIRE(o.out == other.out);
  REQUIRE(bench.attention->run(o.backward(), stream));
  REQUIRE((bench.library.plans == 2 && bench.attention->plans() == 2));
}

TEST_CASE(
    "attention that the rules leave to our kernels does not reach the library, with one note") {
  Bench bench;
  Operands o(kCases[0]);
  AttentionForward f = o.forward();
  const Lines lines;
  f.shape.q_start = 1;  // not a mask of cuDNN's
  for (int i = 0; i < 3; ++i) REQUIRE(!bench.attention->run(f, nullptr));
  REQUIRE((bench.library.executions == 0 && bench.attention->plans() == 0));
  REQUIRE(lines.count == 1);
  f.shape.q_start = 0, f.shape.D = 12;
  REQUIRE(!bench.attention->run(f, nullptr));
  REQUIRE(lines.count == 2);
  REQUIRE(bench.attention->run(o.forward(), nullptr));
  REQUIRE(lines.count == 2);
}

TEST_CASE("a refusal is remembered, and falls back") {
  Bench bench;
  Operands o(kCases[1]);
  bench.library.engines = {{.builds = false}};
  REQUIRE(!bench.attention->run(o.forward(), nullptr));
  REQUIRE(bench.attention->plans() == 1);
  bench.library.engines = {{}};
  REQUIRE(!bench.attention->run(o.forward(), nullptr));  // not asked again
  REQUIRE(bench.library.plans == 0);
  REQUIRE(bench.attention->run(o.backward(), nullptr));  // the other half is its own plan
}

TEST_CASE("the workspace is that of the first engine that accepts the graph") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.engines = {{.builds = false}, {.workspace = 1000}};
  most_taken = 0;
  REQUIRE(bench.attention->run(o.forward(), nullptr));
  REQUIRE(most_taken == 1000);
  bench.library.engines = {{.workspace = int64_t(2) << 30}};
  REQUIRE(!bench.attention->run(Operands(kCases[1]).forward(), nullptr));  // too much for a forward
}

TEST_CASE(
    "a long backward with grouped heads goes to cuDNN: only deterministic plans have a limit") {
  Bench bench(4096);
  bench.library.engines = {{.workspace = 4096 + 256}};
  Operands o({"grouped", 1, 12, 12, 6, 2, 16});
  REQUIRE(bench.attention->run(o.backward(false), nullptr));
  REQUIRE(!bench.attention->run(o.backward(true), nullptr));
}

TEST_CASE("a deterministic backward that needs too much memory is computed by parts of its heads") {
  struct Parts {
    Case c;
    int64_t most_heads;  // that have enough memory in one call
    int calls;           // 0: mtrain's own kernels
  };
  for (const Parts& p :
       {Parts{{"square", 2, 16, 16, 8, 8, 8}, 2, 4}, Parts{{"grouped", 1, 12, 12, 12, 4, 16}, 6, 2},
        Parts{{"in three", 2, 12, 12, 6, 3, 16}, 2, 3},
        Parts{{"packed", 1, 256, 256, 8, 2, 16, true, 0, {0, 9, 256}}, 7, 2},
        Parts{{"lse off a border", 1, 256, 256, 4, 2, 16, true, 0, {0, 9, 256}}, 2, 0},
        Parts{{"one kv head", 1, 12, 12, 8, 1, 16}, 4, 0}}) {
    CAPTURE(p.c.name);
    constexpr int64_t kHead = 1024;
    Bench bench(p.most_heads * kHead);
    bench.library.engines = {{.builds = false}, {.workspace_per_head = kHead}};
    Operands got(p.c), want(p.c);
    for (Operands* o : {&got, &want}) cpu::run(o->forward());
    REQUIRE(bench.attention->run(got.backward(true), nullptr) == (p.calls > 0));
    CHECK(bench.library.executions == p.calls);
    if (p.calls == 0) continue;
    cpu::run(want.backward());
    require_gradients(got, want, DType::bf16);
    // Where the order of sums is free, one call computes all heads.
    REQUIRE(bench.attention->run(got.backward(false), nullptr));
    CHECK(bench.library.executions == p.calls + 1);
  }
}

TEST_CASE("a plan that fails to execute is an error with cuDNN's message") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.failure = "CUDNN_STATUS_EXECUTION_FAILED";
  REQUIRE_THROWS_AS(bench.attention->run(o.forward(), nullptr), RunError);
  REQUIRE_THROWS_WITH(bench.attention->run(o.forward(), nullptr),
                      Catch::Contains("CUDNN_STATUS_EXECUTION_FAILED"));
}

TEST_CASE("where an engine refuses to execute, the next one computes the same, from then on") {
  for (const Case& c : {kCases[1], kPacks[0]}) {
    CAPTURE(c.name);
    Bench bench;
    Operands got(c), want(c);
    bench.library.engines = {{.refusal = "no"}, {.refusal = "no"}, {.workspace = 1000}};
    {
      const Lines lines;
      for (int i = 0; i < 2; ++i) REQUIRE(bench.attention->run(got.forward(), nullptr));
      CHECK(lines.count == 2);  // one for each engine
    }
    CHECK((bench.library.tries == 4 && bench.library.executions == 2));
    CHECK(bench.attention->engine_of(got.forward()) == "cuDNN, engine 2");
    CHECK(bench.attention->engine_of(got.backward()) == "");  // has not run
    cpu::run(want.forward());
    static Closeness close("cuDNN's next engine");
    REQUIRE(close(got.out, want.out.values(), {.dtype = DType::bf16, .K = 1, .scale = 1}) == "");
    REQUIRE(bench.attention->run(got.backward(), nullptr));
  }
}

TEST_CASE("if every engine refuses to execute, our kernels compute, with one note") {
  Bench bench;
  Operands o(kCases[1]), before(kCases[1]);
  bench.library.engines = {{.refusal = "no"}};
  const Lines lines;
  for (int i = 0; i < 3; ++i) REQUIRE(!bench.attention->run(o.forward(), nullptr));
  CHECK((bench.library.tries == 1 && lines.count == 2));  // the engine, and that there is none
  CHECK((o.out == before.out && o.lse == before.lse));
}

TEST_CASE("a failure of the GPU is not a refusal, whatever cuDNN calls it") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.engines = {{.refusal = "no"}, {}};
  gpu_has_failed = true;
  REQUIRE_THROWS_WITH(bench.attention->run(o.forward(), nullptr),
                      Catch::Contains("illegal memory access"));
  gpu_has_failed = false;  // nothing was decided
  bench.library.engines = {{}, {}};
  REQUIRE(bench.attention->run(o.forward(), nullptr));
}

TEST_CASE("the engine is chosen before a capture, and a refusal within one is an error") {
  Bench bench;
  Operands o(kCases[0]);
  captures = true;
  REQUIRE_THROWS_WITH(bench.attention->run(o.forward(), nullptr),
                      Catch::Contains("attention forward of 2 x 16 rows") &&
                          Catch::Contains("was not computed before the capture"));
  CHECK(bench.library.tries == 0);
  captures = false;
  REQUIRE(bench.attention->run(o.forward(), nullptr));
  captures = true;
  REQUIRE(bench.attention->run(o.forward(), nullptr));
  bench.library.refusal = "the stand-in's why";
  REQUIRE_THROWS_WITH(
      bench.attention->run(o.forward(), nullptr),
      Catch::Contains("in the capture of a graph") && Catch::Contains("the stand-in's why"));
  bench.library.refusal = "", captures = false;
  REQUIRE(bench.attention->run(o.forward(), nullptr));  // the choice stands
  CHECK(bench.library.plans == 1);
}

}  // namespace kernels_cudnn_test
