// Tests the operations of context parallelism, with all ranks computed one after another on one
// device: the parts add up to attention over the whole sequence.
#include <catch2/catch.hpp>

#include <limits>
#include <numeric>
#include <optional>

#include "attention_reference.h"
#include "base/error.h"
#include "device/device.h"
#include "ops/attention.h"
#include "ops/attention_block.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "test/support/kernels_testing.h"

namespace ops_context_test {

using namespace mtrain;
using namespace mtrain::test;

namespace {

struct Layout {
  const char* name;
  int64_t cp, B, A, G;
  std::vector<int64_t> documents;  // positions of each; empty: one sequence
};

constexpr int64_t kD = 32;
constexpr double kScale = 0.17677669529663687;  // 1 / sqrt(D)

Tensor upload(Stream& stream, const Array& x, Shape shape) {
  const auto values = x.values();
  const Tensor wide =
      Tensor::from_host(stream, shape, std::vector<float>(values.begin(), values.end()));
  if (x.dtype() == DType::f32) return wide;
  Tensor narrow = Tensor::empty(stream, shape, x.dtype());
  ops::cast(stream, wide, narrow);
  return narrow;
}

// Returns the values of columns first to first + count - 1.
std::vector<double> columns(Stream& stream, const Tensor& x_TN, int64_t first, int64_t count) {
  const std::vector<float> all = x_TN.to_host_float(stream);
  std::vector<double> some;
  for (int64_t t = 0; t < x_TN.dim(0); ++t)
    for (int64_t i = 0; i < count; ++i) some.push_back(all[size_t(t * x_TN.dim(1) + first + i)]);
  return some;
}

// The attention of one layer, with its sequence sharded over cp ranks.
class Ranks {
 public:
  Ranks(Stream& stream, const Layout& l, DType type)
      : stream_(stream), l_(l), type_(type), lengths_(l.documents) {
    if (lengths_.empty()) lengths_ = {2 * l.cp * 21};
    S_ = std::accumulate(lengths_.begin(), lengths_.end(), int64_t(0));
    s_ = S_ / l.cp;
    N_ = (l.A + 2 * l.G) * kD;
    qkv_ = Array::normal(type, S_ * l.B * N_, 1);
    dout_ = Array::normal(type, S_ * l.B * l.A * kD, 2);
    const Tensor qkv = to_ranks(upload(stream, qkv_, {S_ * l.B, N_}));
    const Tensor dout = to_ranks(upload(stream, dout_, {S_ * l.B, l.A * kD}));
    for (int64_t r = 0; r < l.cp; ++r) {
      qkv_of_.push_back(of_rank(qkv, r));
      dout_of_.push_back(of_rank(dout, r));
      // Ranks send each other keys and values, without the queries.
      kv_of_.push_back(Tensor::empty(stream, {s_ * l.B, 2 * l.G * kD}, type));
      ops::copy_blocks(stream, qkv_of_[r], kv_of_[r],
                       {{0, l.A * kD, 0, 0, s_ * l.B, 2 * l.G * kD}});
    }
    int32_t at = 0;
    for (int64_t length : lengths_) {
      begin_.push_back(at);
      mid_.push_back(at + int32_t(length / l.cp / 2));
      at += int32_t(length / l.cp);
      end_.push_back(at);
    }
  }

  void ring() {
    for (int64_t r = 0; r < l_.cp; ++r) {
      ops::AttentionResult merged = empty_result(s_);
      for (int64_t step = 0; step < l_.cp; ++step) {
        const int64_t j = (r + l_.cp - step) % l_.cp;
        const ops::AttentionBlock block = ring_block(r, j);
        if (step == 0) {
          ops::attention_block(stream_, block, q(r), k(j), v(j), merged);
          continue;
        }
        const int64_t first = block.q.begin, count = block.q.end - first;
        ops::AttentionResult part = empty_result(count);
        ops::AttentionBlock local = block;
        local.q = {0, count};
        const Tensor queries = qkv_of_[r].rows(first * l_.B, block.q.end * l_.B);
        ops::attention_block(stream_, local, {queries}, k(j), v(j), part);
        ops::attention_merge(stream_, part, merged, first);
      }
      results_.push_back(finish(merged));
    }
    std::vector<Tensor> dkv;
    for (int64_t r = 0; r < l_.cp; ++r) {
      dq_.push_back(Tensor::empty(stream_, {s_ * l_.B, l_.A * kD}, DType::f32));
      dkv.push_back(Tensor::empty(stream_, {s_ * l_.B, 2 * l_.G * kD}, DType::f32));
    }
    for (int64_t step = 0; step < l_.cp; ++step)
      for (int64_t r = 0; r < l_.cp; ++r) {
        const int64_t j = (r + l_.cp - step) % l_.cp;
        ops::attention_block_backward(stream_, ring_block(r, j), q(r), k(j), v(j), results_[r],
                                      dout_of_[r],
                                      {{dq_[r]}, {dkv[j]}, {dkv[j], l_.G}, step > 0, step > 0});
      }
    dkv_ = to_sequence(dkv);
  }

  // Keys of all ranks at once: each chunk of queries with the keys up to its end.
  void all_gather() {
    const Tensor kv = to_sequence(kv_of_), dkv = Tensor::empty(stream_, kv.shape(), DType::f32);
    ops::fill(stream_, dkv, 0);
    for (int64_t r = 0; r < l_.cp; ++r) {
      ops::AttentionResult merged = empty_result(s_);
      std::vector<ops::AttentionBlock> blocks;
      for (int64_t half : {0, 1}) blocks.push_back(chunk_block(half, half ? 2 * l_.cp - 1 - r : r));
      for (const auto& block : blocks) {
        if (&block == &blocks[0] || l_.documents.empty()) {
          ops::attention_block(stream_, block, q(r), {kv}, {kv, l_.G}, merged);
        } else {
          const ops::AttentionResult part = empty_result(s_);
          ops::attention_block(stream_, block, q(r), {kv}, {kv, l_.G}, part);
          ops::attention_merge(stream_, part, merged, 0);
        }
      }
      results_.push_back(finish(merged));
      dq_.push_back(Tensor::empty(stream_, {s_ * l_.B, l_.A * kD}, DType::f32));
      ops::fill(stream_, dq_[r], 0);
      for (const auto& block : blocks)
        ops::attention_block_backward(stream_, block, q(r), {kv}, {kv, l_.G}, results_[r],
                                      dout_of_[r], {{dq_[r]}, {dkv}, {dkv, l_.G}, true, true});
    }
    dkv_ = dkv;
  }

  // The attention of the full sequence in float64, which every type of context parallelism must
  // give.
  AttentionReference reference() const {
    AttentionCase c{l_.name, l_.B, S_, S_, l_.A, l_.G, kD};
    if (!l_.documents.empty()) {
      c.cu_seqlens = {0};
      for (int64_t length : lengths_) c.cu_seqlens.push_back(c.cu_seqlens.back() + int32_t(length));
    }
    const auto part = [&](int64_t first, int64_t heads) {
      std::vector<double> some;
      for (int64_t t = 0; t < S_ * l_.B; ++t)
        for (int64_t i = 0; i < heads * kD; ++i) some.push_back(qkv_[t * N_ + first * kD + i]);
      return some;
    };
    return AttentionReference(c, part(0, l_.A), part(l_.A, l_.G), part(l_.A + l_.G, l_.G),
                              dout_.values());
  }

  void check(const AttentionReference& ref, Closeness& close) {
    // These are the tolerances of kernels_attention_test.cpp.
    const double D = double(kD), rows = double(S_ * l_.A / l_.G);
    const auto rule = [&](double terms, double scale) {
      return Rule{.dtype = type_, .K = terms, .scale = scale, .sums = DType::f32};
    };
    const auto gradient = [&](double terms, double heads) {
      return type_ == DType::f32 ? rule(terms, 8)
                                 : Rule{.dtype = type_, .K = heads, .scale = 4, .sums = type_};
    };
    const auto near = [&](const Tensor& got, int64_t first, int64_t heads,
                          const std::vector<double>& want, const Rule& allowed) {
      return close(Array(DType::f64, columns(stream_, got, first * kD, heads * kD)), want, allowed);
    };
    std::vector<Tensor> out;
    for (const auto& result : results_) out.push_back(result.out_TN);
    REQUIRE(near(to_sequence(out), 0, l_.A, ref.out, rule(D, 4)) == "");
    REQUIRE(near(to_sequence(dq_), 0, l_.A, ref.dq, gradient(D, 1)) == "");
    REQUIRE(near(dkv_, 0, l_.G, ref.dk, gradient(D + rows, double(l_.A / l_.G))) == "");
    REQUIRE(near(dkv_, l_.G, l_.G, ref.dv, rule(D + rows, 8)) == "");
    check_lse(ref.lse);
  }

 private:
  Tensor of_rank(const Tensor& x, int64_t r) const {
    return x.rows(r * s_ * l_.B, (r + 1) * s_ * l_.B);
  }
  std::vector<ops::CopyBlock> order(int64_t width) const {
    std::vector<int64_t> rows = lengths_;
    for (int64_t& n : rows) n *= l_.B;
    return ops::balanced_to_sequence(rows, l_.cp, width);
  }
  Tensor to_ranks(const Tensor& x) const {
    const Tensor y = Tensor::empty(stream_, x.shape(), x.dtype());
    ops::copy_blocks(stream_, x, y, ops::inverse(order(x.dim(1))));
    return y;
  }
  Tensor to_sequence(const std::vector<Tensor>& parts) const {
    const int64_t rows = parts[0].dim(0), width = parts[0].dim(1);
    const Tensor ranks = Tensor::empty(stream_, {l_.cp * rows, width}, parts[0].dtype());
    for (int64_t r = 0; r < l_.cp; ++r)
      ops::copy_blocks(stream_, parts[r], ranks, {{0, 0, r * rows, 0, rows, width}});
    const Tensor whole = Tensor::empty(stream_, ranks.shape(), ranks.dtype());
    ops::copy_blocks(stream_, ranks, whole, order(width));
    return whole;
  }

  ops::Heads q(int64_t r) const { return {qkv_of_[r]}; }
  ops::Heads k(int64_t j) const { return {kv_of_[j]}; }
  ops::Heads v(int64_t j) const { return {kv_of_[j], l_.G}; }
  Tensor ids(const std::vector<int32_t>& x) const {
    return Tensor::from_host(stream_, {int64_t(x.size())}, x);
  }

  ops::AttentionBlock base() const {
    return {.B = l_.B,
            .q = {0, s_},
            .kv = {0, s_},
            .A = l_.A,
            .G = l_.G,
            .D = kD,
            .scale = float(kScale)};
  }
  ops::AttentionBlock ring_block(int64_t r, int64_t j) const {
    ops::AttentionBlock b = base();
    b.causal = j == r;
    if (!l_.documents.empty()) {
      b.q_documents = {ids(j > r ? mid_ : begin_), ids(end_)};
      b.kv_documents = {ids(begin_), ids(j < r ? mid_ : end_)};
    } else if (j < r) {
      b.kv.end = s_ / 2;
    } else if (j > r) {
      b.q.begin = s_ / 2;
    }
    return b;
  }
  ops::AttentionBlock chunk_block(int64_t half, int64_t number) const {
    ops::AttentionBlock b = base();
    b.causal = true;
    const int64_t chunks = 2 * l_.cp;
    if (l_.documents.empty()) {
      b.q = half ? ops::Rows{s_ / 2, s_} : ops::Rows{0, s_ / 2};
      b.kv = {0, S_ / chunks * (number + 1)};
      return b;
    }
    b.kv = {0, S_};
    b.q_documents =
        half ? ops::Documents{ids(mid_), ids(end_)} : ops::Documents{ids(begin_), ids(mid_)};
    std::vector<int32_t> first, last;
    int64_t at = 0;
    for (int64_t length : lengths_) {
      first.push_back(int32_t(at));
      last.push_back(int32_t(at + length / chunks * (number + 1)));
      at += length;
    }
    b.kv_documents = {ids(first), ids(last)};
    return b;
  }

  ops::AttentionResult empty_result(int64_t positions) const {
    return {Tensor::empty(stream_, {positions * l_.B, l_.A * kD}, DType::f32),
            Tensor::empty(stream_, {l_.B, l_.A, positions}, DType::f32)};
  }
  ops::AttentionResult finish(const ops::AttentionResult& merged) const {
    if (type_ == DType::f32) return merged;
    const Tensor out = Tensor::empty(stream_, merged.out_TN.shape(), type_);
    ops::cast(stream_, merged.out_TN, out);
    return {out, merged.lse};
  }

  void check_lse(const std::vector<double>& want) {
    // Converts a rank's (B, A, s) to one row per position, to which the order of chunks applies.
    std::vector<Tensor> rows;
    for (const auto& result : results_) {
      const std::vector<float> lse = result.lse.to_host<float>(stream_);
      std::vector<float> by_row(lse.size());
      for (int64_t b = 0; b < l_.B; ++b)
        for (int64_t a = 0; a < l_.A; ++a)
          for (int64_t s = 0; s < s_; ++s)
            by_row[size_t((s * l_.B + b) * l_.A + a)] = lse[size_t((b * l_.A + a) * s_ + s)];
      rows.push_back(Tensor::from_host(stream_, {s_ * l_.B, l_.A}, by_row));
    }
    const std::vector<float> got = to_sequence(rows).to_host<float>(stream_);
    for (int64_t b = 0; b < l_.B; ++b)
      for (int64_t a = 0; a < l_.A; ++a)
        for (int64_t s = 0; s < S_; ++s) {
          const double ref = want[size_t((b * l_.A + a) * S_ + s)];
          const double value = got[size_t((s * l_.B + b) * l_.A + a)];
          REQUIRE(std::abs(value - ref) <= eps(DType::f32) * (4 + std::abs(ref)) * 4);
        }
  }

  Stream& stream_;
  Layout l_;
  DType type_;
  std::vector<int64_t> lengths_;
  int64_t S_, s_, N_;  // positions of all ranks, of one; columns of qkv
  Array qkv_{DType::f32, 0}, dout_{DType::f32, 0};
  std::vector<Tensor> qkv_of_, kv_of_, dout_of_;
  std::vector<int32_t> begin_, mid_, end_;  // the documents' halves on every rank
  std::vector<ops::AttentionResult> results_;
  std::vector<Tensor> dq_;
  Tensor dkv_;  // in the sequence's order
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (int64_t cp : {2, 4})
    for (int64_t G : {8, 4, 2}) {
      all.push_back({"one sequence", cp, 1, 8, G, {}});
      all.push_back({"three sequences", cp, 3, 8, G, {}});
      all.push_back({"documents", cp, 1, 8, G, {2 * cp, 18 * cp, 0, 6 * cp, 2 * cp * 13}});
    }
  return all;
}

}  // namespace

TEST_CASE("attention block by block over a ring, and over gathered keys, equals attention") {
  const auto device = Device::cpu(2);
  Stream& stream = device->stream(device::StreamKind::compute);
  for (DType type : kFloats) {
    Closeness ring(fmt::format("attention over a ring {}", dtype_name(type))),
        gathered(fmt::format("attention over gathered keys {}", dtype_name(type)));
    for (const Layout& l : layouts()) {
      const AttentionReference whole = Ranks(stream, l, type).reference();
      for_each_isa([&](const char* isa) {
        INFO(l.name << " cp " << l.cp << " G " << l.G << " " << dtype_name(type) << " " << isa);
        Ranks by_ring(stream, l, type);
        by_ring.ring();
        by_ring.check(whole, ring);
        Ranks by_gather(stream, l, type);
        by_gather.all_gather();
        by_gather.check(whole, gathered);
        device->synchronize();  // before the instruction set changes
      });
    }
  }
}

TEST_CASE("a block of attention leaves other rows alone, and rows without a key get 0 and -inf") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  const int64_t S = 6, D = 4;
  const Tensor qkv = upload(stream, Array::normal(DType::f32, S * 3 * D, 1), {S, 3 * D});
  const auto result = [&] {
    ops::AttentionResult r{Tensor::empty(stream, {S, D}, DType::f32),
                           Tensor::empty(stream, {1, 1, S}, DType::f32)};
    ops::fill(stream, r.out_TN, 7);
    ops::fill(stream, r.lse, 7);
    return r;
  };
  const auto ids = [&](std::vector<int32_t> x) { return Tensor::from_host(stream, {1}, x); };
  ops::AttentionBlock block{
      .B = 1, .q = {1, 4}, .kv = {2, 5}, .A = 1, .G = 1, .D = D, .scale = 0.5f};
  const ops::AttentionResult some = result();
  ops::attention_block(stream, block, {qkv}, {qkv, 1}, {qkv, 2}, some);
  const auto lse = some.lse.to_host<float>(stream), out = some.out_TN.to_host<float>(stream);
  for (int64_t s = 0; s < S; ++s) {
    CAPTURE(s);
    REQUIRE((lse[s] == 7) == (s < 1 || s >= 4));
    REQUIRE((out[s * D] == 7) == (s < 1 || s >= 4));
  }
  block.q_documents = {ids({1}), ids({2})};  // position 2 of all
  block.kv_documents = {ids({0}), ids({2})};
  const ops::AttentionResult one = result();
  ops::attention_block(stream, block, {qkv}, {qkv, 1}, {qkv, 2}, one);
  const auto one_lse = one.lse.to_host<float>(stream), one_out = one.out_TN.to_host<float>(stream);
  for (int64_t s = 0; s < S; ++s) {
    CAPTURE(s);
    if (s < 1 || s >= 4)
      REQUIRE((one_lse[s] == 7 && one_out[s * D] == 7));
    else if (s != 2)
      REQUIRE((one_lse[s] == -std::numeric_limits<float>::infinity() && one_out[s * D] == 0));
    else
      REQUIRE((std::isfinite(one_lse[s]) && one_out[s * D] != 0));
  }
}

TEST_CASE("heads are split into parts by destination, and come back as whole sequences") {
  const auto device = Device::cpu(2);
  Stream& stream = device->stream(device::StreamKind::compute);
  const int64_t cp = 4, B = 2, D = 3, A = 8, G = 4, N = (A + 2 * G) * D, width = N / cp;
  const std::vector<int64_t> documents = {16 * B, 8 * B, 40 * B};
  const int64_t T = std::accumulate(documents.begin(), documents.end(), int64_t(0)), local = T / cp;
  const auto order = ops::balanced_to_sequence(documents, cp, N);
  for (DType type : kFloats) {
    const Array values = Array::normal(type, T * N, 1);
    const Tensor whole = upload(stream, values, {T, N});
    const Tensor ranks = Tensor::empty(stream, {T, N}, type);
    ops::copy_blocks(stream, whole, ranks, ops::inverse(order));
    // Rank r's first token is the first of chunk r of the first document.
    const auto moved = ranks.to_host_float(stream);
    for (int64_t r = 0; r < cp; ++r)
      REQUIRE(double(moved[size_t(r * local * N)]) == values[r * documents[0] / (2 * cp) * N]);

    const auto sections = ops::split_columns(local, {A * D, G * D, G * D}, cp);
    const Tensor received =
        Tensor::empty(stream, {cp, T, width}, type);  // the rows that rank p got from all ranks
    for (int64_t r = 0; r < cp; ++r) {
      const Tensor parts = Tensor::empty(stream, {T, width}, type);
      ops::copy_blocks(stream, ranks.rows(r * local, (r + 1) * local), parts, sections);
      for (int64_t p = 0; p < cp; ++p)
        ops::cast(stream, parts.rows(p * local, (p + 1) * local),
                  received.rows(p, p + 1).view({T, width}).rows(r * local, (r + 1) * local));
    }
    for (int64_t p = 0; p < cp; ++p) {
      const Tensor part = received.rows(p, p + 1).view({T, width});
      const Tensor heads = Tensor::empty(stream, {T, width}, type);
      ops::copy_blocks(stream, part, heads, ops::balanced_to_sequence(documents, cp, width));
      const auto got = heads.to_host_float(stream);
      const int64_t q = A / cp * D, kv = G / cp * D;
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < width; ++i) {
          const int64_t column = i < q        ? p * q + i
                                 : i < q + kv ? A * D + p * kv + i - q
                                              : (A + G) * D + p * kv + i - q - kv;
          REQUIRE(double(got[size_t(t * width + i)]) == values[t * N + column]);
        }
    }
    // A rank's parts return by the same list in the opposite direction.
    const Tensor parts = Tensor::empty(stream, {T, width}, type),
                 back = Tensor::empty(stream, {local, N}, type);
    ops::copy_blocks(stream, ranks.rows(0, local), parts, sections);
    ops::copy_blocks(stream, parts, back, ops::inverse(sections));
    REQUIRE(back.to_host_float(stream) == ranks.rows(0, local).to_host_float(stream));
  }
}

TEST_CASE("copied blocks that leave elements out are not a complete write") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  const Tensor from = upload(stream, Array(DType::f32, 12), {4, 3}),
               to = Tensor::empty(stream, {4, 3}, DType::f32);
  const auto partial = [&](std::vector<ops::CopyBlock> blocks) {
    std::optional<bool> seen;
    device->set_launch_check(
        [&](Stream&, const device::LaunchInfo& info) { seen = info.writes.at(0).partial; });
    ops::copy_blocks(stream, from, to, std::move(blocks));
    device->set_launch_check({});
    return seen.value();
  };
  CHECK_FALSE(partial({{0, 0, 0, 0, 4, 3}}));
  CHECK_FALSE(partial({{0, 0, 2, 0, 2, 3}, {2, 0, 0, 0, 2, 3}}));
  CHECK(partial({{0, 0, 2, 0, 2, 3}, {2, 0, 0, 0, 1, 3}}));
  CHECK(partial({{0, 0, 0, 0, 4, 2}}));
}

TEST_CASE("copying blocks beyond a matrix is refused") {
  Array x(DType::f32, 12), y(DType::f32, 12);
  kernels::CopyBlocks a{.from = x, .to = y, .from_width = 3, .to_width = 4, .blocks = {}};
  for (const ops::CopyBlock bad : {ops::CopyBlock{0, 1, 0, 0, 2, 3},
                                   {3, 0, 0, 0, 2, 1},
                                   {0, 0, 2, 0, 2, 3},
                                   {0, 0, 0, 2, 1, 3},
                                   {-1, 0, 0, 0, 1, 1}}) {
    a.blocks = {bad};
    REQUIRE_THROWS_AS(kernels::cpu::run(a), BugError);
  }
  a.blocks = {{0, 0, 0, 1, 3, 3}};
  REQUIRE_NOTHROW(kernels::cpu::run(a));
  const Array half(DType::bf16, 12);
  a.from = half;
  REQUIRE_THROWS_AS(kernels::cpu::run(a), BugError);
}

}  // namespace ops_context_test
