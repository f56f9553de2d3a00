// Tests the graphs for cuDNN with a stand-in for the library that computes them.
#include <catch2/catch.hpp>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "cudnn_stand_in.h"
#include "kernels/cuda/cudnn/attention.h"
#include "plan/attention_workspace.h"
#include "test/support/kernels_testing.h"

namespace kernels_cudnn_test {

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

struct Case {
  const char* name;
  int64_t B, Sq, Skv, A, G, D;
  bool causal = true;
  int64_t window = 0;
  std::vector<int32_t> borders = {};  // cu_seqlens of packed documents
  int64_t longest_document = 0;
};

// Elements between the tokens of fused rows, a different number in each tensor.
constexpr int64_t kGap = 8, kQueryGradientGap = 16, kKeyGradientGap = 24, kValueGap = 32,
                  kValueGradientGap = 40, kOutGradientGap = 48;
alignas(16) char aligned[32];
ConstSpan at(int64_t offset, DType type = DType::bf16) { return {aligned + offset, 0, type}; }

// Attention whose operands have the model's layout: q, k and v in one row of a token.
struct Operands {
  Case c;
  Array q, k, v, dout, out, lse, dq, dk, dv, borders;

  explicit Operands(const Case& of, DType type = DType::bf16)
      : c(of),
        q(Array::normal(type, queries(kGap), 1)),
        k(Array::normal(type, keys(kGap), 2)),
        v(Array::normal(type, keys(kValueGap), 3)),
        dout(Array::normal(type, queries(kOutGradientGap), 4)),
        out(type, queries(kGap)),
        lse(DType::f32, c.B * c.A * c.Sq),
        dq(type, queries(kQueryGradientGap)),
        dk(type, keys(kKeyGradientGap)),
        dv(type, keys(kValueGradientGap)),
        borders(Array::ids(c.borders)) {}
  int64_t query_row(int64_t gap) const { return c.A * c.D + gap; }
  int64_t key_row(int64_t gap) const { return c.G * c.D + gap; }
  int64_t queries(int64_t gap) const { return c.B * c.Sq * query_row(gap); }
  int64_t keys(int64_t gap) const { return c.B * c.Skv * key_row(gap); }

  AttentionShape shape() {
    DocumentRows documents;
    if (!c.borders.empty()) {
      const ConstSpan all = borders;
      const int64_t n = all.count - 1;
      documents = {{all.as<int32_t>(), n, all.dtype}, {all.as<int32_t>() + 1, n, all.dtype}};
    }
    return {.B = c.B,
            .Sq = c.Sq,
            .Skv = c.Skv,
            .A = c.A,
            .G = c.G,
            .D = c.D,
            .causal = c.causal,
            .window = c.window,
            .q_documents = documents,
            .kv_documents = documents,
            .longest_document = c.longest_document,
            .scale = 1 / std::sqrt(float(c.D))};
  }
  AttentionForward forward() {
    return {.shape = shape(),
            .q = {q, query_row(kGap)},
            .k = {k, key_row(kGap)},
            .v = {v, key_row(kValueGap)},
            .out = {out, query_row(kGap)},
            .lse = lse};
  }
  AttentionBackward backward(bool fixed_order = true) {
    return {.shape = shape(),
            .q = {q, query_row(kGap)},
            .k = {k, key_row(kGap)},
            .v = {v, key_row(kValueGap)},
            .out = {out, query_row(kGap)},
            .dout = {dout, query_row(kOutGradientGap)},
            .lse = lse,
            .dq = {dq, query_row(kQueryGradientGap)},
            .dk = {dk, key_row(kKeyGradientGap)},
            .dv = {dv, key_row(kValueGradientGap)},
            .fixed_order = fixed_order};
  }
};

int taken = 0;
int64_t bytes_taken = 0;  // by all calls
void* take(size_t bytes, CUstream_st*) {
  ++taken;
  bytes_taken += int64_t(bytes);
  CudnnStandIn::it().max_workspace_used =
      std::max(CudnnStandIn::it().max_workspace_used, int(bytes));
  auto* memory = new std::vector<unsigned char>(bytes + sizeof(void*) + 256, 0xff);
  auto address = (reinterpret_cast<uintptr_t>(memory->data()) + sizeof(void*) + 255) / 256 * 256;
  std::memcpy(reinterpret_cast<void*>(address - sizeof(void*)), &memory, sizeof memory);
  return reinterpret_cast<void*>(address);
}
void give(void* memory, CUstream_st*) noexcept {
  --taken;
  std::vector<unsigned char>* whole = nullptr;
  std::memcpy(&whole, static_cast<char*>(memory) - sizeof(void*), sizeof whole);
  delete whole;
}

void fill(const cuda::DocumentTable& t, CUstream_st*) {
  for (int64_t d = 0; d <= t.room; ++d) {
    const int32_t begin = d < t.documents ? t.begin[d] : t.end[t.documents - 1];
    if (d < t.room) t.lengths[d] = d < t.documents ? t.end[d] - begin : 0;
    for (int64_t i = 0; i < t.tensors; ++i)
      t.offsets[i * t.pitch + d] = int32_t(begin * t.strides[i]);
  }
}
void copy(const CopyBlocks& c, CUstream_st*) { cpu::run(c); }

bool captures = false, gpu_has_failed = false;
bool capturing(CUstream_st*) { return captures; }
void require_healthy(CUstream_st*) {
  if (gpu_has_failed) throw RunError("an illegal memory access");
}

struct Lines : log::Overlay {
  Lines() { log::set_overlay(this); }
  ~Lines() override { log::set_overlay(nullptr); }
  void interrupt(const std::function<void()>& write_line) override { write_line(), ++count; }
  int count = 0;
};

// A fresh library, and attention through it on an H200.
struct Bench {
  CudnnStandIn& library = CudnnStandIn::it();
  std::optional<cuda::CudnnAttention> attention;
  explicit Bench(int64_t max_workspace = cuda::CudnnAttention::kMaxWorkspace) {
    library = CudnnStandIn{};
    captures = gpu_has_failed = false;
    attention.emplace(
        CudnnStandIn::api(), reinterpret_cast<cudnnContext*>(&library),
        cuda::CudnnTarget{.version = 91900, .architecture = 90},
        cuda::CudnnAttention::Device{take, give, fill, copy, capturing, require_healthy},
        max_workspace);
  }
  ~Bench() {
    attention.reset();
    CHECK(library.alive == 0);  // no descriptor is left behind
    CHECK(taken == 0);
  }
};

const std::vector<Case> kCases = {
    {"square", 2, 16, 16, 2, 2, 8},          {"grouped", 1, 12, 12, 6, 2, 16},
    {"one kv head", 2, 9, 9, 3, 1, 8},       {"all keys", 2, 7, 7, 2, 1, 8, false},
    {"more keys", 1, 5, 11, 4, 2, 8, false}, {"more keys, causal", 2, 5, 11, 2, 1, 8},
    {"window", 2, 17, 17, 4, 2, 8, true, 5}};

void require_gradients(Operands& got, Operands& want, DType type) {
  static Closeness close("gradients by cuDNN's graphs");
  const Case& c = got.c;
  const Rule sums{.dtype = type, .K = double(c.D + c.A / c.G), .scale = 3};
  REQUIRE(close(got.dq, want.dq.values(), sums) == "");
  REQUIRE(close(got.dk, want.dk.values(), sums) == "");
  REQUIRE(close(got.dv, want.dv.values(), sums) == "");
}

// Forward and backward through cuDNN's graphs against the CPU kernels.
void compare(const Case& c, bool deterministic, DType type = DType::bf16) {
  static Closeness close("cuDNN's graphs");
  Bench bench;
  Operands got(c, type), want(c, type);
  REQUIRE(bench.attention->run(got.forward(), nullptr));
  cpu::run(want.forward());
  // Probabilities and the scores' gradients are operands of 16 bits; K of them add up to about 1.
  const Rule rule{.dtype = type, .K = 1, .scale = 1};
  REQUIRE(close(got.out, want.out.values(), rule) == "");
  for (int64_t i = 0; i < want.lse.size(); ++i)  // natural logarithms
    REQUIRE(std::abs(got.lse[i] - want.lse[i]) <= 1e-5 * (4 + std::abs(want.lse[i])));
  REQUIRE(bench.attention->run(got.backward(deterministic), nullptr));
  cpu::run(want.backward());
  require_gradients(got, want, type);
  // No tensor owns the gaps between tokens.
  REQUIRE((got.dk.margin_untouched() && got.out.margin_untouched()));
  for (int64_t i = c.A * c.D; i < c.A * c.D + kGap; ++i) REQUIRE(got.out[i] == 0);
}

}  // namespace

TEST_CASE("the graphs compute attention and its gradients, as the CPU kernels do") {
  for (const Case& c : kCases)
    for (bool deterministic : {true, false}) {
      CAPTURE(c.name, deterministic);
      compare(c, deterministic);
      compare(c, deterministic, DType::f16);
    }
}

TEST_CASE("the graphs keep packed documents apart, as the CPU kernels do") {
  // cuDNN is used if documents have 128 rows or more on average.
  for (const Case& c :
       {Case{"grouped", 1, 256, 256, 2, 1, 16, true, 0, {0, 9, 256}},
        Case{"an empty one", 1, 256, 256, 1, 1, 16, true, 0, {0, 256, 256}},
        Case{"window", 1, 256, 256, 1, 1, 16, true, 30, {0, 199, 256}},
        Case{"all keys", 1, 256, 256, 1, 1, 16, false, 0, {0, 140, 256}},
        Case{"room for one more", 1, 384, 384, 1, 1, 16, true, 0, {0, 1, 9, 384}},
        Case{"one document", 1, 128, 128, 2, 2, 16, true, 0, {0, 128}},
        Case{"two packs", 1, 256, 256, 4, 2, 16, true, 0, {0, 128, 256}, 128},
        Case{"windows in two packs", 1, 256, 256, 2, 1, 16, true, 30, {0, 100, 256}, 160}}) {
    CAPTURE(c.name);
    compare(c, c.window > 0);
  }
}

TEST_CASE("packs of about as many documents share a plan, and memory is that of their tokens") {
  Bench bench;
  const auto with = [](std::vector<int32_t> borders) {
    return Operands({"", 1, 1024, 1024, 4, 2, 16, true, 0, std::move(borders)});
  };
  Operands five = with({0, 100, 200, 300, 400, 1024});
  Operands seven = with({0, 1, 2, 3, 4, 500, 600, 1024}), four = with({0, 1, 2, 3, 1024});
  REQUIRE(cuda::key_of(five.forward()) == cuda::key_of(seven.forward()));
  REQUIRE(cuda::key_of(five.forward()) != cuda::key_of(four.forward()));
  REQUIRE(cuda::key_of(five.backward(false)) == cuda::key_of(seven.backward(false)));
  const auto g = cuda::backward_graph(cuda::key_of(five.backward(false)));
  int64_t bytes = 0;
  for (const auto& t : g.tensors())
    if (t.place == cuda::GraphTensor::Place::workspace) bytes += t.bytes();
  // Sums of dq in fp32, dk and dv per query head in bf16, and out x dout.
  REQUIRE(bytes == 1024 * 4 * (16 * (4 + 2 + 2) + 4));
}

TEST_CASE("several packs in one sequence need no more blocks than their documents can") {
  Bench bench;
  const auto with = [](int64_t rows, std::vector<int32_t> borders) {
    return Operands({"", 1, rows, rows, 4, 2, 16, true, 0, std::move(borders), 512});
  };
  Operands one = with(512, {0, 200, 512}), two = with(1024, {0, 200, 512, 900, 1024});
  const cuda::CudnnAttentionKey a = cuda::key_of(one.forward()), b = cuda::key_of(two.forward());
  CHECK((a.Sq == 512 && a.Skv == 512 && a.rows == 512 && a.B == 2));
  CHECK((b.Sq == 512 && b.Skv == 512 && b.rows == 1024 && b.B == 4));
  // Memory is that of all tokens.
  const auto workspace = [](Operands& o) {
    int64_t bytes = 0;
    const auto g = cuda::backward_graph(cuda::key_of(o.backward(false)));
    for (const auto& t : g.tensors())
      if (t.place == cuda::GraphTensor::Place::workspace) bytes += t.bytes();
    return bytes;
  };
  CHECK(workspace(two) == 2 * workspace(one));
}

TEST_CASE("attention takes the planned workspace, and cuDNN its own") {
  for (const Case& c :
       {Case{"square", 2, 256, 256, 2, 2, 16}, Case{"grouped", 1, 256, 256, 6, 2, 16},
        Case{"packed", 1, 256, 256, 2, 2, 16, true, 0, {0, 100, 256}},
        Case{"packed, grouped", 1, 256, 256, 4, 1, 16, true, 0, {0, 256}}})
    for (const bool fixed_order : {false, true})
      for (const int64_t own : {0, 5000}) {
        CAPTURE(c.name, fixed_order, own);
        Bench bench;
        bench.library.engines = {{.workspace = own}};
        bench.library.computes = false;
        Operands o(c);
        bytes_taken = 0;
        REQUIRE(bench.attention->run(o.backward(fixed_order), nullptr));
        const int64_t planned = plan::attention_workspace({.rows = c.B * c.Sq,
                                                           .A = c.A,
                                                           .G = c.G,
                                                           .D = c.D,
                                                           .cudnn = true,
                                                           .fixed_order = fixed_order,
                                                           .documents = !c.borders.empty()});
        // The rest is the table of documents and padding between tensors.
        CHECK(bytes_taken >= planned + own);
        CHECK(bytes_taken <= planned + own + 1024);
      }
}

TEST_CASE("packed documents that are not for cuDNN are named with the reason") {
  const cuda::CudnnTarget h200{.version = 91900, .architecture = 90};
  Operands o({"", 1, 512, 512, 2, 1, 16, true, 0, {0, 200, 400, 512}});
  const auto why = [&](auto change, cuda::CudnnTarget t) {
    AttentionForward f = o.forward();
    change(f);
    return cuda::why_not_cudnn(f, t);
  };
  const auto nothing = [](AttentionForward&) {};
  REQUIRE(why(nothing, h200) == "");
  using Catch::Contains;
  for (int architecture : {80, 89, 120, 121})
    CHECK_THAT(why(nothing, {91900, architecture}), Contains("packed documents on sm_"));
  CHECK(why(nothing, {91900, 100}) == "");
  CHECK_THAT(why([](auto& f) { f.shape.q_documents.begin.count = 0; }, h200),
             Contains("without documents"));
  CHECK_THAT(why([](auto& f) { f.shape.document_gaps = true; }, h200),
             Contains("divided among ranks"));
  CHECK_THAT(why([](auto& f) { f.shape.kv_documents.begin = at(0, DType::i32); }, h200),
             Contains("divided among ranks"));
  CHECK_THAT(why([](auto& f) { f.shape.q_documents.begin.count = 5; }, h200),
             Contains("fewer than 128 rows on average"));
  CHECK_THAT(why([](auto& f) { f.shape.D = 8; }, h200), Contains("heads of 8"));
  CHECK_THAT(why([](auto& f) { f.q.token_stride = 1 << 24; }, h200),
             Contains("rows of 16777216 elements"));
  // cuDNN gets the lengths, so there are no keys after the last.
  CHECK(cuda::why_not_cudnn(o.backward(), {91500, 90}) == "");
}

TEST_CASE("tensors are described by where the caller's elements are") {
  const Case c{"", 3, 10, 12, 6, 2, 8, false};
  Operands o(c);
  const cuda::OperationGraph g = cuda::forward_graph(cuda::key_of(o.forward()));
  using S = cuda::Sizes;
  const auto& q = g.tensor(cuda::kQuery);
  REQUIRE(q.dims == S{3, 6, 10, 8});
  REQUIRE(q.strides == S{56, 8, 3 * 56, 1});
  const auto& k = g.tensor(cuda::kKey);  // transposed, with its own number of heads
  REQUIRE(k.dims == S{3, 2, 8, 12});
  REQUIRE(k.strides == S{24, 8, 1, 3 * 24});
  REQUIRE(g.tensor(cuda::kLse).strides == S{60, 10, 1, 1});
  REQUIRE(g.tensor(cuda::kLse).type == cuda::Element::f32);
  int scales = 0;
  for (const auto& t : g.tensors())
    scales += t.place == cuda::GraphTensor::Place::value && t.value == 1 / std::sqrt(8.0f);
  REQUIRE(scales == 1);
}

TEST_CASE("a mask is described only where there is one") {
  const auto selects = [](bool causal, int64_t window, bool backward) {
    Operands o({"", 1, 8, 8, 1, 1, 8, causal, window});
    const auto g = backward ? cuda::backward_graph(cuda::key_of(o.backward()))
                            : cuda::forward_graph(cuda::key_of(o.forward()));
    int n = 0;
    for (const auto& op : g.operations()) n += op.kind == cuda::Operation::select;
    return n;
  };
  for (bool backward : {false, true}) {
    REQUIRE(selects(false, 0, backward) == 0);
    REQUIRE(selects(true, 0, backward) == 1);
    REQUIRE(selects(true, 3, backward) == 2);
  }
}

TEST_CASE("exactly the inputs that affect the plan change the key") {
  Operands o({"", 2, 8, 8, 2, 1, 8});
  const AttentionBackward b = o.backward();
  const auto key = cuda::key_of(b);
  REQUIRE(key == cuda::key_of(b));
  REQUIRE(key != cuda::key_of(o.backward(false)));
  REQUIRE(key != cuda::key_of(o.forward()));
  const auto differs = [&](auto change) {
    AttentionBackward other = b;
    change(other);
    return cuda::key_of(other) != key;
  };
  CHECK(differs([](auto& x) { x.shape.B = 1; }));
  CHECK(differs([](auto& x) { x.shape.Skv = 4; }));
  CHECK(differs([](auto& x) { x.shape.G = 2; }));
  CHECK(differs([](auto& x) { x.shape.causal = false; }));
  CHECK(differs([](auto& x) { x.shape.window = 4; }));
  CHECK(differs([](auto& x) { x.shape.scale = 1; }));
  CHECK(differs([](auto& x) { x.q.token_stride += 8; }));
  CHECK(differs([](auto& x) { x.dv.token_stride += 8; }));
  CHECK(!differs([](auto& x) { x.q.data = x.dout.data; }));
}

TEST_CASE("attention that is not for cuDNN is named with the reason") {
  const cuda::CudnnTarget h200{.version = 91900, .architecture = 90};
  Operands o({"", 1, 8, 8, 2, 1, 8});
  const auto why = [&](auto change, cuda::CudnnTarget t) {
    AttentionForward f = o.forward();
    change(f);
    return cuda::why_not_cudnn(f, t);
  };
  const auto nothing = [](AttentionForward&) {};
  REQUIRE(why(nothing, h200) == "");
  using Catch::Contains;
  CHECK_THAT(why(nothing, {90800, 90}), Contains("9.8 is older"));
  CHECK_THAT(why(nothing, {91900, 75}), Contains("sm_75"));
  CHECK_THAT(why([](auto& f) { f.q.data.dtype = DType::f32; }, h200), Contains("q is fp32"));
  CHECK_THAT(why([](auto& f) { f.out.data.dtype = DType::f32; }, h200), Contains("out is fp32"));
  CHECK_THAT(why([](auto& f) { f.v.data = at(2); }, h200), Contains("v is not on 16-byte"));
  CHECK_THAT(why([](auto& f) { f.k.token_stride = 20; }, h200), Contains("k is not on 16-byte"));
  CHECK_THAT(why([](auto& f) { f.shape.q_start = 3; }, h200), Contains("a different position"));
  CHECK_THAT(why([](auto& f) { f.shape.lse_stride = 9; }, h200), Contains("log-sum-exps"));
  CHECK_THAT(why([](auto& f) { f.shape.Sq = f.shape.Skv = 1; }, h200), Contains("one token"));
  CHECK_THAT(why([](auto& f) { f.shape.D = 12; }, h200), Contains("heads of 12"));
  CHECK_THAT(why([](auto& f) { f.shape.cap = 50; }, h200), Contains("capped"));
  const auto large = [](AttentionForward& f) { f.shape.D = 256; };
  CHECK(why(large, h200) == "");
  CHECK_THAT(why(large, {91900, 80}), Contains("up to 128"));
  const auto window = [](AttentionForward& f) { f.shape.window = 4; };
  CHECK(why(window, h200) == "");
  CHECK_THAT(why([&](auto& f) { window(f), f.shape.causal = false; }, h200), Contains("window"));
  CHECK_THAT(why([&](auto& f) { window(f), f.shape.Sq = 9; }, h200), Contains("more queries"));

  AttentionBackward b = o.backward();
  REQUIRE(cuda::why_not_cudnn(b, h200) == "");
  CHECK_THAT(cuda::why_not_cudnn(b, {91500, 90}), Contains("multiples of 128"));
  b.dk.data.dtype = DType::f32;
  CHECK_THAT(cuda::why_not_cudnn(b, h200), Contains("dk is fp32"));
  b.add_dkv = true;
  CHECK_THAT(cuda::why_not_cudnn(b, h200), Contains("added to"));
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
  f.shape.q_start = 1;
  for (int i = 0; i < 3; ++i) REQUIRE(!bench.attention->run(f, nullptr));
  REQUIRE((bench.library.executions == 0 && bench.attention->plans() == 0));
  REQUIRE(lines.count == 1);
  f.shape.q_start = 0, f.shape.D = 12;
  REQUIRE(!bench.attention->run(f, nullptr));
  REQUIRE(lines.count == 2);
  REQUIRE(bench.attention->run(o.forward(), nullptr));
  REQUIRE(lines.count == 2);
}

TEST_CASE("a refusal at any step is remembered, and falls back") {
  using Kind = CudnnStandIn::Kind;
  for (Kind step : {Kind::tensor, Kind::operation_matmul, Kind::operation_graph, Kind::heuristics,
                    Kind::execution_plan}) {
    CAPTURE(int(step));
    Bench bench;
    Operands o(kCases[1]);
    bench.library.refuse[step] = CudnnStandIn::Status::not_supported;
    REQUIRE(!bench.attention->run(o.forward(), nullptr));
    REQUIRE(bench.attention->plans() == 1);
    bench.library.refuse.clear();
    REQUIRE(!bench.attention->run(o.forward(), nullptr));  // not asked again
    REQUIRE(bench.library.plans == 0);
    REQUIRE(bench.attention->run(o.backward(), nullptr));  // the other half is its own plan
  }
}

TEST_CASE("engines are tried in the heuristics' order, then the fallback mode's") {
  using Status = CudnnStandIn::Status;
  SECTION("the first that takes the graph") {
    Bench bench;
    Operands o(kCases[0]);
    bench.library.engines = {{.plan = Status::not_supported}, {.workspace = 1000}};
    REQUIRE(bench.attention->run(o.forward(), nullptr));
    REQUIRE(bench.library.max_workspace_used == 1024);  // in multiples of 256 bytes
  }
  SECTION("the fallback's") {
    Bench bench;
    Operands o(kCases[0]);
    bench.library.engines = {{.plan = Status::not_supported}};
    bench.library.fallback_engines = {{}};
    REQUIRE(bench.attention->run(o.forward(), nullptr));
  }
  SECTION("none") {
    Bench bench;
    Operands o(kCases[0]);
    bench.library.engines = {};
    REQUIRE(!bench.attention->run(o.forward(), nullptr));
  }
  SECTION("not one that wants more memory than a run can spare") {
    Bench bench;
    Operands o(kCases[0]);
    bench.library.engines = {{.workspace = int64_t(2) << 30}};
    REQUIRE(!bench.attention->run(o.forward(), nullptr));
  }
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
    bench.library.engines = {{.plan = CudnnStandIn::Status::not_supported},
                             {.workspace_per_head = kHead}};
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

TEST_CASE("where the order of sums is fixed, engines without one are passed over") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.engines = {{.deterministic = false}};
  REQUIRE(!bench.attention->run(o.backward(), nullptr));
  REQUIRE(bench.attention->run(o.backward(false), nullptr));
  bench.library.engines = {{.deterministic = false}, {.deterministic = true}};
  Operands longer({"", 2, 24, 24, 2, 2, 8});
  REQUIRE(bench.attention->run(longer.backward(), nullptr));
}

TEST_CASE("a plan that fails to execute is an error that names the call and the status") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.executing = CudnnStandIn::Status::execution_failed;
  REQUIRE_THROWS_AS(bench.attention->run(o.forward(), nullptr), RunError);
  REQUIRE_THROWS_WITH(bench.attention->run(o.forward(), nullptr),
                      Catch::Contains("cudnnBackendExecute failed") &&
                          Catch::Contains("CUDNN_STATUS_EXECUTION_FAILED (5000)") &&
                          Catch::Contains("the stand-in's why"));
}

TEST_CASE("where an engine refuses to execute, the next one computes the same, from then on") {
  using Status = CudnnStandIn::Status;
  for (const Status refusal : {Status::not_supported, Status(3010), Status(2006)})
    for (const Case& c : {kCases[1], Case{"packed", 1, 256, 256, 2, 1, 16, true, 0, {0, 9, 256}}}) {
      CAPTURE(int(refusal), c.name);
      Bench bench;
      Operands got(c), want(c);
      bench.library.engines = {{.executing = refusal}};
      bench.library.fallback_engines = {{.executing = refusal}, {.workspace = 1000}};
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
  bench.library.engines = {{.executing = CudnnStandIn::Status::not_supported}};
  const Lines lines;
  for (int i = 0; i < 3; ++i) REQUIRE(!bench.attention->run(o.forward(), nullptr));
  CHECK((bench.library.tries == 1 && lines.count == 2));  // the engine, and that there is none
  CHECK((o.out == before.out && o.lse == before.lse));
}

TEST_CASE("a failure of the GPU is not a refusal, whatever cuDNN calls it") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.engines = {{.executing = CudnnStandIn::Status::not_supported}, {}};
  gpu_has_failed = true;
  REQUIRE_THROWS_WITH(bench.attention->run(o.forward(), nullptr),
                      Catch::Contains("illegal memory access"));
  gpu_has_failed = false;  // nothing was decided
  bench.library.engines = {{}, {}};
  REQUIRE(bench.attention->run(o.forward(), nullptr));
  for (const auto status : {CudnnStandIn::Status::internal_error, CudnnStandIn::Status(5003)}) {
    bench.library.executing = status;
    REQUIRE_THROWS_WITH(bench.attention->run(o.forward(), nullptr),
                        Catch::Contains("cudnnBackendExecute failed"));
  }
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
  bench.library.executing = CudnnStandIn::Status::not_supported;
  REQUIRE_THROWS_WITH(
      bench.attention->run(o.forward(), nullptr),
      Catch::Contains("in the capture of a graph") && Catch::Contains("the stand-in's why"));
  bench.library.executing = CudnnStandIn::Status::success, captures = false;
  REQUIRE(bench.attention->run(o.forward(), nullptr));  // the choice stands
  CHECK(bench.library.plans == 1);
}

}  // namespace kernels_cudnn_test
