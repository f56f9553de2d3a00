// Compares the attention cores of context parallelism with attention on one rank, under the stream
// sanitizer.
#include <catch2/catch.hpp>

#include <numeric>

#include "base/rng.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "parallel/context/context_attention.h"
#include "plan/head_chunks.h"
#include "test/support/comm_testing.h"

namespace parallel_context_test {

using namespace mtrain;
using namespace mtrain::parallel;

namespace {

constexpr int64_t kD = 16;

struct Case {
  const char* name;
  int64_t B, G;
  std::vector<int64_t> documents;  // lengths over two ranks each; empty: one sequence
  int64_t window = 0;
  float scale = 0, cap = 0;  // for scores
};
constexpr int64_t kA = 8;
const std::vector<Case> kCases{{"equal heads", 1, 8, {}},
                               {"groups of two, two sequences", 2, 4, {}},
                               {"groups of four", 1, 2, {}},
                               {"documents", 1, 4, {8, 72, 24, 104, 4}},
                               {"documents, one of them alone", 1, 8, {64}},
                               {"window", 2, 8, {}, 11},
                               {"window over documents", 1, 8, {8, 72, 24, 104, 4}, 11},
                               {"scale and cap", 2, 4, {}, 0, 0.5f, 1},
                               {"scale and cap over documents", 1, 8, {8, 72, 24}, 0, 0.5f, 1},
                               {"window, scale and cap", 1, 8, {}, 11, 0.5f, 1}};

// The operands of attention over the full sequence, which every rank can generate.
struct AttentionProblem {
  Case c;
  int cp;
  DType type;
  int64_t S = 0;                   // tokens of the whole sequence
  std::vector<int64_t> documents;  // lengths over all ranks

  AttentionProblem(const Case& of, int ranks, DType dtype) : c(of), cp(ranks), type(dtype) {
    for (const int64_t n : c.documents) documents.push_back(n * cp / 2);
    S = documents.empty() ? 2 * cp * 13
                          : std::accumulate(documents.begin(), documents.end(), int64_t(0));
  }
  int64_t N() const { return (kA + 2 * c.G) * kD; }
  model::HeadConfig heads() const { return {kA, c.G, kD, c.window, c.scale, c.cap}; }
  Tensor values(Stream& stream, int64_t width, uint64_t key) const {
    const Tensor wide = Tensor::empty(stream, {S * c.B, width}, DType::f32);
    ops::fill_normal(stream, wide, key, 0, 1);
    return rounded(stream, wide);
  }
  Tensor qkv(Stream& stream) const { return values(stream, N(), 1); }
  Tensor dout(Stream& stream) const { return values(stream, kA * kD, 2); }
  // Returns the blocks that sort the rows of all ranks into the order of the sequence.
  std::vector<ops::CopyBlock> order(int64_t width) const {
    std::vector<int64_t> rows = documents.empty() ? std::vector{S} : documents;
    for (int64_t& n : rows) n *= c.B;
    return ops::balanced_to_sequence(rows, cp, width);
  }
  model::SequenceInfo sequence(Stream& stream, int64_t ranks) const {
    model::SequenceInfo seq{.B = c.B, .S = S / ranks};
    if (documents.empty()) return seq;
    std::vector<int32_t> ends{0};
    for (const int64_t n : documents) ends.push_back(ends.back() + int32_t(n));
    seq.documents = documents;
    seq.cu_seqlens = Tensor::from_host(stream, {int64_t(ends.size())}, ends);
    return seq;
  }

 private:
  Tensor rounded(Stream& stream, const Tensor& wide) const {
    if (type == DType::f32) return wide;
    const Tensor narrow = Tensor::empty(stream, wide.shape(), type);
    ops::cast(stream, wide, narrow);
    return narrow;
  }
};

struct Values {
  std::vector<float> out, dqkv;  // for the full sequence
};

// Returns the attention of the same numbers on one rank in fp32.
Values reference(const AttentionProblem& problem) {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  const auto wide = [&](const Tensor& x) {
    const Tensor y = Tensor::empty(stream, x.shape(), DType::f32);
    ops::cast(stream, x, y);
    return y;
  };
  const model::SequenceInfo seq = problem.sequence(stream, 1);
  model::WgradQueue wgrad;
  model::Stash stash;
  model::Step step{.compute = stream, .wgrad = wgrad, .stash = &stash, .seq = seq};
  const auto core = local_attention(problem.heads());
  const Tensor qkv = wide(problem.qkv(stream));
  const model::CoreResult forward = core->forward(step, qkv, {});
  const Tensor dqkv = core->backward(step, forward, wide(problem.dout(stream)), {}, true).plain;
  return {forward.out_TN.plain.to_host_float(stream), dqkv.to_host_float(stream)};
}

enum class Type { p2p, all_gather, a2a, a2a_p2p };
constexpr const char* kNames[] = {"p2p", "all_gather", "a2a", "a2a+p2p"};

// Levels of a2a+p2p.
struct Levels {
  int first, second;
};

bool allowed(Type type, const AttentionProblem& p, Levels levels) {
  const bool ring = type == Type::p2p || type == Type::a2a_p2p;
  if (ring && p.c.window) return false;
  if (type == Type::a2a) return p.c.G % p.cp == 0;
  return type != Type::a2a_p2p || p.c.G % levels.first == 0;
}

std::unique_ptr<model::AttentionCore> make_core(Type type, comm::World& world,
                                                const std::shared_ptr<ContextComm>& comm,
                                                const model::HeadConfig& heads, Levels levels) {
  const mesh::Mesh mesh = mesh::device_mesh({.cp = world.size()});
  const Group cp = world.group("cp", mesh, {mesh::Axis::cp});
  const auto level = [&](const char* name, size_t i) {
    std::vector<int> ranks;
    for (const int64_t r :
         hierarchical_cp_group(mesh, world.rank(), {levels.first, levels.second}, i))
      ranks.push_back(int(r));
    return world.group(fmt::format("{} {}", name, levels.first), ranks);
  };
  switch (type) {
    case Type::p2p: return p2p_attention(comm, cp, heads);
    case Type::all_gather: return all_gather_attention(comm, cp, heads, plan::head_chunks(heads.G));
    case Type::a2a:
      return a2a_attention(comm, cp, heads, plan::head_chunks(heads.G / world.size()));
    case Type::a2a_p2p: return a2a_p2p_attention(comm, level("level", 0), level("ring", 1), heads);
  }
  throw BugError("type");
}

// One layer of each type that the case allows, one after the other, then their backwards: the
// layers share a ContextComm, as in a model.
std::vector<Values> run(const AttentionProblem& problem, const std::vector<Type>& types,
                        Levels levels, bool overlap) {
  const auto ranks = size_t(problem.cp);
  std::vector<Values> results(types.size());
  std::vector<std::vector<Values>> of_rank(ranks, std::vector<Values>(types.size()));
  run_ranks(problem.cp, "thread", [&](TestRank& rank) {
    Stream& stream = rank.device.stream(device::StreamKind::compute);
    const auto comm =
        std::make_shared<ContextComm>(rank.device.stream(device::StreamKind::cp), overlap);
    const auto own = [&](const Tensor& whole) {
      const Tensor x = Tensor::empty(stream, whole.shape(), whole.dtype());
      ops::copy_blocks(stream, whole, x, ops::inverse(problem.order(whole.dim(1))));
      const int64_t rows = whole.dim(0) / problem.cp;
      return x.rows(rank.rank() * rows, (rank.rank() + 1) * rows);
    };
    const model::SequenceInfo seq = problem.sequence(stream, problem.cp);
    const Tensor qkv = own(problem.qkv(stream)), dout = own(problem.dout(stream));
    model::WgradQueue wgrad;
    model::Stash stash;
    model::Step step{.compute = stream, .wgrad = wgrad, .stash = &stash, .seq = seq};
    std::vector<std::unique_ptr<model::AttentionCore>> cores;
    std::vector<model::CoreResult> forwards;
    std::vector<Tensor> gradients(types.size());
    for (const Type type : types) {
      cores.push_back(make_core(type, rank.world, comm, problem.heads(), levels));
      forwards.push_back(cores.back()->forward(step, qkv, {}));
    }
    for (size_t i = types.size(); i-- > 0;)
      gradients[i] = cores[i]->backward(step, forwards[i], dout, {}, true).plain;
    for (size_t i = 0; i < types.size(); ++i)
      of_rank[size_t(rank.rank())][i] = {forwards[i].out_TN.plain.to_host_float(stream),
                                         gradients[i].to_host_float(stream)};
  });
  // Sorts the rows of all ranks into the order of the sequence.
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  for (size_t i = 0; i < types.size(); ++i)
    for (const auto which : {&Values::out, &Values::dqkv}) {
      std::vector<float> by_rank;
      for (const auto& r : of_rank)
        by_rank.insert(by_rank.end(), (r[i].*which).begin(), (r[i].*which).end());
      const int64_t rows = problem.S * problem.c.B, width = int64_t(by_rank.size()) / rows;
      const Tensor x = Tensor::from_host(stream, {rows, width}, by_rank),
                   y = Tensor::empty(stream, {rows, width}, DType::f32);
      ops::copy_blocks(stream, x, y, problem.order(width));
      results[i].*which = y.to_host<float>(stream);
    }
  return results;
}

// Returns the error in the columns [begin, end) of rows of `width`.
double relative_error(const std::vector<float>& got, const std::vector<float>& want, int64_t width,
                      int64_t begin, int64_t end) {
  REQUIRE(got.size() == want.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto column = int64_t(i) % width;
    if (column < begin || column >= end) continue;
    difference += std::pow(double(got[i]) - want[i], 2);
    size += std::pow(double(want[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("every core of context parallelism attends as one rank does") {
  for (const DType type : {DType::f32, DType::bf16})
    for (const int cp : {2, 4})
      for (const Case& c : kCases) {
        const AttentionProblem problem(c, cp, type);
        const Values want = reference(problem);
        const std::vector<Levels> hierarchies =
            cp == 4 ? std::vector<Levels>{{2, 2}} : std::vector<Levels>{{2, 1}, {1, 2}};
        for (const Levels levels : hierarchies) {
          std::vector<Type> types;
          for (const Type t : {Type::p2p, Type::all_gather, Type::a2a, Type::a2a_p2p})
            if (allowed(t, problem, levels)) types.push_back(t);
          const auto got = run(problem, types, levels, true);
          const auto in_turns = run(problem, types, levels, false);
          for (size_t i = 0; i < types.size(); ++i) {
            CAPTURE(kNames[int(types[i])], cp, c.name, dtype_name(type), levels.first);
            // fp32: sums of 100 terms in another order. bf16: a rounding of the result, and in
            // backward one of the forward's.
            const double bound = type == DType::f32 ? 2e-6 : 4e-3;
            const int64_t AD = kA * kD, GD = c.G * kD, N = problem.N();
            CHECK(relative_error(got[i].out, want.out, AD, 0, AD) < bound);
            CHECK(relative_error(got[i].dqkv, want.dqkv, N, 0, AD) < bound);
            CHECK(relative_error(got[i].dqkv, want.dqkv, N, AD, AD + GD) < bound);
            CHECK(relative_error(got[i].dqkv, want.dqkv, N, AD + GD, N) < bound);
            CHECK((in_turns[i].out == got[i].out));
            CHECK((in_turns[i].dqkv == got[i].dqkv));
          }
        }
      }
}

TEST_CASE("three ranks give what one gives") {
  const AttentionProblem three({"three ranks", 2, 4, {}}, 3, DType::f32);
  const Values want = reference(three);
  for (const Values& v : run(three, {Type::p2p, Type::all_gather}, {1, 3}, true)) {
    CHECK(relative_error(v.out, want.out, 1, 0, 1) < 2e-6);
    CHECK(relative_error(v.dqkv, want.dqkv, 1, 0, 1) < 2e-6);
  }
}

}  // namespace parallel_context_test
