#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/math.h"
#include "kernels/attention.h"
#include "kernels/attention_decode.h"
#include "kernels/cuda/cudnn/document_table.h"
#include "kernels/cuda/cudnn/spread_rows.h"
#include "kernels/cuda/device/attention_kernels.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/elementwise.h"
#include "kernels/workspace.h"
#include "mirror.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;

namespace {

struct Case {
  const char* name;
  int64_t B, Sq, Skv, A, G, D;
  bool causal = true;
  int64_t q_start = 0, window = 0;
  std::vector<int32_t> q_begin = {}, q_end = {}, kv_begin = {}, kv_end = {};
  bool gaps = false;
  float cap = 0, scale = 0;  // for scores; scale 0: 1 / sqrt(D)
  int64_t longest_document = 0;
  int64_t Dv = 0;  // elements of a head of v; 0: D
  int64_t value_dim() const { return Dv > 0 ? Dv : D; }
  float scale_of() const { return scale > 0 ? scale : 1 / std::sqrt(float(D)); }
};
// Returns the case with a cap of scores and another scale.
Case capped(Case c, float cap, float scale = 0) {
  c.cap = cap, c.scale = scale;
  return c;
}

// Returns the case with values of another size, as in latent attention.
Case with_values(Case c, int64_t Dv) {
  c.Dv = Dv;
  return c;
}

// Returns where the documents begin and where they end, from their borders.
std::pair<std::vector<int32_t>, std::vector<int32_t>> from(const std::vector<int32_t>& cu) {
  return {std::vector<int32_t>(cu.begin(), cu.end() - 1),
          std::vector<int32_t>(cu.begin() + 1, cu.end())};
}

std::vector<Case> with_documents() {
  std::vector<Case> cases;
  for (bool causal : {true, false})
    for (int64_t window : {0, 20}) {
      const auto [begin, end] = from({0, 1, 70, 70, 101, 130});
      cases.push_back(
          {"documents", 1, 130, 130, 4, 2, 64, causal, 0, window, begin, end, begin, end});
      // As on a rank of context parallelism, queries also see keys of other rows of the document.
      cases.push_back({"documents with gaps",
                       1,
                       90,
                       140,
                       2,
                       1,
                       64,
                       causal,
                       0,
                       window,
                       {5, 40, 60},
                       {30, 55, 90},
                       {0, 50, 90},
                       {45, 90, 140},
                       true});
    }
  return cases;
}

const std::vector<Case> kCases = {
    {"one", 1, 1, 1, 1, 1, 64},
    {"seven", 2, 7, 7, 4, 2, 32},
    {"square", 2, 64, 64, 2, 2, 64},
    {"grouped", 1, 130, 130, 8, 2, 80},
    {"several blocks", 1, 257, 257, 2, 1, 128},
    {"odd head", 2, 33, 33, 3, 1, 37},
    {"tiny head", 1, 40, 40, 2, 2, 3},
    {"large head", 1, 70, 70, 1, 1, 200},
    {"all keys", 2, 130, 130, 2, 1, 64, false},
    {"more keys, all", 2, 30, 290, 4, 2, 32, false},
    {"more keys", 1, 64, 257, 2, 2, 64, true, 193},
    {"some rows see nothing", 1, 130, 64, 2, 1, 64, true, -50},
    {"no row sees a key", 1, 20, 20, 2, 1, 32, true, -20},
    {"window", 2, 257, 257, 2, 1, 32, true, 0, 40},
    {"window of one", 1, 70, 70, 1, 1, 128, true, 0, 1},
    {"window beyond the keys", 1, 70, 40, 1, 1, 64, true, 40, 30},
    capped({"scale", 1, 70, 70, 2, 1, 64}, 0, 0.0625f),
    capped({"cap", 1, 130, 130, 4, 2, 64}, 1.5f),
    capped({"high cap", 1, 70, 70, 2, 1, 128}, 50),
    capped({"large head, cap", 1, 70, 70, 1, 1, 200}, 1),
    capped({"odd head, cap", 2, 33, 33, 3, 1, 37, false}, 1),
    capped({"cap, window", 1, 130, 130, 2, 1, 32, true, 0, 40}, 0.5f, 0.25f),
    with_values({"narrow values", 2, 70, 70, 2, 2, 192}, 128),
    with_values({"narrow values, more keys", 1, 64, 130, 4, 2, 96, true, 66}, 64),
    with_values({"odd narrow values", 2, 33, 33, 3, 1, 37}, 5),
    with_values({"wide values", 1, 70, 70, 2, 1, 24, false}, 80)};

constexpr int64_t kGap = 8;  // elements between the tokens of a fused row

struct Operands {
  Mirror q, k, v, dout, out, lse, dq, dk, dv, q_begin, q_end, kv_begin, kv_end;
  int64_t q_stride, k_stride, v_stride, out_stride, lse_stride;
  const Case& c;
  bool fixed_order = true;

  Operands(const Case& of, DType type, DType results, int64_t offset, int64_t lse_gap = 3)
      : q(Array::normal(type, of.B * of.Sq * (of.A * of.D + kGap), 1), offset),
        k(Array::normal(type, of.B * of.Skv * (of.G * of.D + kGap), 2), offset),
        v(Array::normal(type, of.B * of.Skv * (of.G * of.value_dim() + kGap), 3), offset),
        dout(Array::normal(type, of.B * of.Sq * (of.A * of.value_dim() + kGap), 4), offset),
        out(Array::normal(results, dout.host().size(), 5), offset),
        lse(Array(DType::f32, of.B * of.A * (of.Sq + lse_gap)), offset),
        dq(Array::normal(results, q.host().size(), 6), offset),
        dk(Array::normal(results, k.host().size(), 7), offset),
        dv(Array::normal(results, v.host().size(), 8), offset),
        q_begin(Array::ids(of.q_begin)),
        q_end(Array::ids(of.q_end)),
        kv_begin(Array::ids(of.kv_begin)),
        kv_end(Array::ids(of.kv_end)),
        q_stride(of.A * of.D + kGap),
        k_stride(of.G * of.D + kGap),
        v_stride(of.G * of.value_dim() + kGap),
        out_stride(of.A * of.value_dim() + kGap),
        lse_stride(of.Sq + lse_gap),
        c(of) {}

  template <class Of>
  AttentionShape shape(const Of& of) {
    AttentionShape s{.B = c.B,
                     .Sq = c.Sq,
                     .Skv = c.Skv,
                     .A = c.A,
                     .G = c.G,
                     .D = c.D,
                     .Dv = c.Dv,
                     .causal = c.causal,
                     .q_start = c.q_start,
                     .window = c.window,
                     .document_gaps = c.gaps,
                     .longest_document = c.longest_document,
                     .scale = c.scale_of(),
                     .cap = c.cap,
                     .lse_stride = lse_stride};
    if (!c.q_begin.empty()) {
      s.q_documents = {of(q_begin), of(q_end)};
      const bool same = c.q_begin == c.kv_begin && c.q_end == c.kv_end;
      s.kv_documents = same ? s.q_documents : DocumentRows{of(kv_begin), of(kv_end)};
    }
    return s;
  }
  template <class Of>
  AttentionForward forward(const Of& of) {
    return {.shape = shape(of),
            .q = {of(q), q_stride},
            .k = {of(k), k_stride},
            .v = {of(v), v_stride},
            .out = {of(out), out_stride},
            .lse = of(lse)};
  }
  template <class Of>
  AttentionBackward backward(const Of& of, Mirror& merged, bool add) {
    return {.shape = shape(of),
            .q = {of(q), q_stride},
            .k = {of(k), k_stride},
            .v = {of(v), v_stride},
            .out = {of(merged), out_stride},
            .dout = {of(dout), out_stride},
            .lse = of(lse),
            .dq = {of(dq), q_stride},
            .dk = {of(dk), k_stride},
            .dv = {of(dv), v_stride},
            .add_dq = add,
            .add_dkv = add,
            .fixed_order = fixed_order};
  }
};
Span on_host(Mirror& m) { return m.host(); }
Span on_device(Mirror& m) { return m.device(); }

template <class Args>
void run_on_device(const Args& args) {
  cuda::run(args, device_stream());
}
// Memory full of NaN: what a launch does not write before it reads it shows in the results.
class FilledWorkspace final : public Workspace {
 public:
  void* allocate(size_t bytes) override {
    const int64_t floats = int64_t(bytes + 3) / 4;
    void* const memory = device_take(size_t(floats) * 4);
    cuda::run(Fill{.y = {memory, floats, DType::f32}, .value = std::nanf("")}, device_stream());
    taken_.push_back(memory);
    return memory;
  }
  void release(void*) noexcept override {}  // the stream may still use it
  ~FilledWorkspace() override {
    for (void* memory : taken_) device_give(memory);  // waits for the device's work
  }

 private:
  std::vector<void*> taken_;
};

// Computes attention by cuDNN on a GPU, and by our own kernels over cuda_emulator, which are then
// the kernels under test.
template <class Args>
void run_by_cudnn(const Args& args) {
  const bool gpu = size_of_test(0, 1) == 1;
  FilledWorkspace workspace;
  const WorkspaceScope scope(workspace);
  REQUIRE(cuda::attention_by_cudnn(args, device_stream()) == gpu);
  if (!gpu) cuda::run(args, device_stream());
}

// Compares forward and backward with the CPU's.
template <class Run>
void check(Operands& o, DType type, DType results, bool add, int64_t offset, Closeness& close,
           const Run& run) {
  const Case& c = o.c;
  INFO(c.name << " " << dtype_name(type) << " to " << dtype_name(results) << " D " << c.D);
  cpu::run(o.forward(on_host));
  run(o.forward(on_device));
  // On tensor cores probabilities and gradients of scores are operands of the type: each term of a
  // sum over keys or rows, which add up to about 1, is off by up to eps(type) / 2 times its size.
  const double rows = double(c.Sq * c.A / c.G);
  const auto rule = [&](double terms, double scale) {
    return Rule{.dtype = results, .K = terms, .scale = scale, .sums = type};
  };
  const bool exact = type == DType::f32;
  REQUIRE(o.out.compare(
              close, rule(exact ? double(std::max(c.D, c.value_dim())) : 1, exact ? 4 : 1)) == "");
  const Array lse = o.lse.result();
  for (int64_t i = 0; i < lse.size(); ++i) {
    const double want = o.lse.host()[i];
    REQUIRE((lse[i] == want || std::abs(lse[i] - want) <= 1e-5 * (4 + std::abs(want))));
  }
  // out as the backward reads it, of the operands' type.
  Mirror merged(Array(type, o.out.host().values()), offset);
  cpu::run(o.backward(on_host, merged, add));
  run(o.backward(on_device, merged, add));
  const double D = exact ? double(std::max(c.D, c.value_dim())) : 1,
               shared = exact ? rows : double(c.A / c.G);
  const double scale = exact ? 8 : 3;
  REQUIRE(o.dq.compare(close, rule(D, scale)) == "");
  REQUIRE(o.dv.compare(close, rule(D + shared, scale)) == "");
  REQUIRE(o.dk.compare(close, rule(D + shared, scale)) == "");
}
void check(const Case& c, DType type, DType results, bool add, int64_t offset, Closeness& close) {
  Operands o(c, type, results, offset);
  check(o, type, results, add, offset, close, [](const auto& args) { run_on_device(args); });
}

}  // namespace

TEST_CASE("attention: forward and backward equal the CPU's, every mask and type") {
  for (DType type : kFloats) {
    Closeness close("attention " + std::string(dtype_name(type)));
    for (const auto& cases : {kCases, with_documents()})
      for (const Case& c : cases) {
        for_each_order([&] { check(c, type, type, false, 0, close); });
        check(c, type, DType::f32, true, 1, close);
      }
  }
}

TEST_CASE("attention: results in fp32 and added to, aligned, as blocks of keys are") {
  Closeness close("attention blocks");
  for (DType type : {DType::bf16, DType::f16})
    for (const Case& c : kCases) check(c, type, DType::f32, true, 0, close);
}

TEST_CASE("attention: wide heads equal the CPU's, also where blocks have little shared memory") {
  Closeness close("attention of wide heads");
  for_each_shared_memory([&] {
    for (const Case& c : kCases)
      if (c.D > 128) check(c, DType::f32, DType::f32, false, 0, close);
    check({"widest", 1, 40, 50, 2, 1, 256, true, 10, 30}, DType::bf16, DType::bf16, false, 0,
          close);
  });
}

TEST_CASE("attention: cases for cuDNN equal the CPU's, with the backward's sums in any order") {
  Closeness close("attention by cuDNN");
  const int64_t S = size_of_test(70, 1024), odd = size_of_test(65, 523);
  const std::vector<Case> cases = {{"short", 2, 7, 7, 4, 2, 32},
                                   {"one head per group", 2, S, S, 2, 2, 64},
                                   {"grouped", 1, S, S, 8, 2, 128},
                                   {"one kv head", 2, odd, odd, 4, 1, 80},
                                   {"all keys", 2, odd, odd, 2, 1, 64, false},
                                   {"more keys, all", 2, 30, odd, 4, 2, 32, false},
                                   {"window", 2, odd, odd, 4, 2, 64, true, 0, 40}};
  for (bool fixed : {true, false})
    for (const Case& c : cases) {
      CAPTURE(fixed);
      const DType half = &c == &cases[2] ? DType::f16 : DType::bf16;
      Operands o(c, half, half, 0, 0), again(c, half, half, 0, 0);
      o.fixed_order = again.fixed_order = fixed;
      check(o, half, half, false, 0, close, [](const auto& args) { run_by_cudnn(args); });
      if (!fixed) continue;  // with a fixed order, equal calls give equal bits
      check(again, half, half, false, 0, close, [](const auto& args) { run_by_cudnn(args); });
      REQUIRE(o.out.result() == again.out.result());
      REQUIRE(o.dq.result() == again.dq.result());
      REQUIRE(o.dk.result() == again.dk.result());
      REQUIRE(o.dv.result() == again.dv.result());
    }
}

TEST_CASE("attention: packed documents that cuDNN takes equal the CPU's") {
  Closeness close("packed attention by cuDNN");
  const int64_t S = size_of_test(384, 4096);
  const auto at = [&](int64_t percent) { return int32_t(S * percent / 100); };
  for (const auto& borders :
       {std::vector<int32_t>{0, 9, at(60), int32_t(S)}, {0, at(30), at(30), int32_t(S)}})
    for (const Case& c :
         {Case{"same heads", 1, S, S, 2, 2, 64}, Case{"grouped", 1, S, S, 4, 2, 128, true, 0, 100},
          Case{"all keys", 1, S, S, 2, 1, 64, false}}) {
      Case packed = c;
      std::tie(packed.q_begin, packed.q_end) = from(borders);
      packed.kv_begin = packed.q_begin, packed.kv_end = packed.q_end;
      // Alone, and as of several packs of at most this length.
      for (const int64_t longest : {int64_t(0), round_up(S * 7 / 10, 8)}) {
        packed.longest_document = longest;
        Operands o(packed, DType::bf16, DType::bf16, 0, 0);
        o.fixed_order = false;  // a fixed order would need memory of all scores
        check(o, DType::bf16, DType::bf16, false, 0, close,
              [](const auto& args) { run_by_cudnn(args); });
      }
    }
}

TEST_CASE("attention: blocks of keys and capped scores that cuDNN takes equal the CPU's") {
  Closeness close("blocks and caps by cuDNN");
  const int64_t n = size_of_test(32, 512);
  for (const Case& c : {Case{"last keys", 2, n, 3 * n, 4, 2, 64, true, 2 * n},
                        Case{"last keys, same heads", 1, n, 2 * n, 2, 2, 128, true, n},
                        Case{"last keys, window", 1, n, 3 * n, 4, 2, 64, true, 2 * n, n + 9},
                        Case{"earlier keys", 2, 2 * n, n, 4, 2, 64, false},
                        capped({"last keys, cap", 1, n, 3 * n, 4, 2, 64, true, 2 * n}, 1.5f)}) {
    Operands o(c, DType::bf16, DType::f32, 0, 4);
    check(o, DType::bf16, DType::f32, true, 0, close, [](const auto& args) { run_by_cudnn(args); });
  }
  for (const Case& c : {capped({"cap", 2, 2 * n, 2 * n, 4, 2, 64}, 1.5f),
                        capped({"cap, window", 1, 2 * n, 2 * n, 2, 1, 256, true, 0, n}, 50)})
    for (bool fixed : {true, false}) {
      Operands o(c, DType::bf16, DType::bf16, 0, 0);
      o.fixed_order = fixed;
      check(o, DType::bf16, DType::bf16, false, 0, close,
            [](const auto& args) { run_by_cudnn(args); });
    }
}

TEST_CASE("rows are copied or added between buffers of two types and widths") {
  constexpr int64_t kRows = 5;
  for (const DType from_type : kFloats)
    for (const DType to_type : kFloats) {
      if (is_half(from_type) && is_half(to_type) && from_type != to_type) continue;
      for (const int64_t columns : {7, 24})
        for (const int64_t gap : {0, 8, 3})
          for (const bool add : {false, true}) {
            CAPTURE(dtype_name(from_type), dtype_name(to_type), columns, gap, add);
            const int64_t wide = columns + gap;
            Mirror from(Array::normal(from_type, kRows * columns, 1)),
                to(Array::normal(to_type, kRows * wide, 2));
            const Array before = to.result();
            cuda::run(cuda::SpreadRows{.from = from.device().data,
                                       .to = to.device().data,
                                       .from_type = from_type,
                                       .to_type = to_type,
                                       .from_stride = columns,
                                       .to_stride = wide,
                                       .rows = kRows,
                                       .columns = columns,
                                       .add = add},
                      device_stream());
            const Array after = to.result(), added = from.result();
            for (int64_t i = 0; i < kRows * wide; ++i) {
              Array want = Array::one(to_type, before[i]);
              const int64_t row = i / wide, column = i % wide;
              if (column < columns)
                want.set(0, double(float(added[row * columns + column]) +
                                   (add ? float(before[i]) : 0.0f)));
              REQUIRE(after[i] == want[0]);
            }
          }
    }
}

TEST_CASE("a table of documents says where each begins in every tensor, and how long it is") {
  Mirror borders(Array::ids({0, 1, 70, 70, 101})), lengths(Array(DType::i32, 8)),
      offsets(Array(DType::i32, 24));
  const auto* const cu = borders.device().as<int32_t>();
  for_each_order([&] {
    cuda::run(cuda::DocumentTable{.begin = cu,
                                  .end = cu + 1,
                                  .documents = 4,
                                  .room = 8,
                                  .tensors = 2,
                                  .strides = {1, 24},
                                  .lengths = lengths.device().as<int32_t>(),
                                  .offsets = offsets.device().as<int32_t>(),
                                  .pitch = 12},
              device_stream());
    REQUIRE(lengths.result() == Array::ids({1, 69, 0, 31, 0, 0, 0, 0}));
    // A border after the last document: at the end.
    REQUIRE(offsets.result() ==
            Array::ids({0, 1,  70,   70,   101,  101,  101,  101,  101,  0, 0, 0,  //
                        0, 24, 1680, 1680, 2424, 2424, 2424, 2424, 2424, 0, 0, 0}));
  });
}

TEST_CASE("attention decode equals the CPU's, for every type and width of heads") {
  Closeness close("attention decode on a GPU");
  const std::vector<int32_t> start{0, 3, 10}, end{1, 20, 60};
  const int64_t T = 3, rows = 60;
  for (auto [A, G, D, Dv] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 16, 16},
                             {4, 2, 64, 64},
                             {6, 1, 37, 37},
                             {3, 3, 128, 128},
                             {2, 1, 256, 256},
                             {3, 1, 576, 512},
                             {4, 4, 192, 128},
                             {5, 1, 20, 75}})
    for (DType type : kFloats)
      for_each_way([&, A = A, G = G, D = D, Dv = Dv](int64_t offset) {
        const int64_t N = (A + 2 * G) * D, window = A == 4 ? 15 : 0;
        CAPTURE(A, G, D, Dv, type, window);
        Mirror qkv(Array::normal(type, T * N, 1), offset),
            k(Array::normal(type, rows * G * D, 2), offset),
            v(Array::normal(type, rows * G * Dv, 3), offset), out(Array(type, T * A * Dv), offset);
        Mirror first(Array::ids(start)), last(Array::ids(end));
        const auto args = [&](auto&& of) {
          return AttentionDecode{.q = {of(qkv), N},
                                 .k = {of(k), G * D},
                                 .v = {of(v), G * Dv},
                                 .out = {of(out), A * Dv},
                                 .start_T = of(first),
                                 .end_T = of(last),
                                 .T = T,
                                 .rows = rows,
                                 .A = A,
                                 .G = G,
                                 .D = D,
                                 .window = window,
                                 .scale = 1 / std::sqrt(float(D)),
                                 .cap = A == 6 || A == 2 ? 1.5f : 0.0f,
                                 .Dv = Dv};
        };
        cpu::run(args([](Mirror& m) { return m.host().span(); }));
        cuda::run(args([](Mirror& m) { return m.device(); }), device_stream());
        REQUIRE(out.compare(close, {.dtype = type, .K = 60, .scale = 4, .sums = DType::f32}) == "");
      });
}
