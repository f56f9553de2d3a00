// Tests how often the linears' operands are read to be quantized. An output gradient is quantized
// in one read for both of its GEMMs, if these use all of it. The current scale of an operand comes
// from the kernel that wrote it, if that is a norm's or an activation's. Under a delayed scale the
// kernels of norms and of swiglu quantize the operand themselves, and only its 8 bits are read to
// be transposed. A weight gradient uses the scale that the forward has found. The bits are those of
// operands that are measured and quantized for each GEMM.
#include <algorithm>
#include <set>
#include <utility>

#include "model/linear.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "test/support/graph_testing.h"
#include "train_fp8_testing.h"

namespace parity_fp8_gradients_test {

using namespace mtrain;
using namespace train_testing;

namespace {

// Counts launches that read output gradients, the only tensors of this type: to find their scale,
// to quantize them into one layout, and into both. `written`: launches of the kernels that compute
// a gradient, and leave it in 8 bits. `transposed`: launches that transpose these.
struct Reads {
  int measured = 0, apart = 0, both = 0, written = 0, transposed = 0;
  bool operator==(const Reads&) const = default;
};
std::ostream& operator<<(std::ostream& o, const Reads& r) {
  return o << r.measured << " measured, " << r.apart << " apart, " << r.both << " both, "
           << r.written << " written, " << r.transposed << " transposed";
}

// Counts reads by launch names. An amax belongs to the next quantization of the same memory.
class CountReads {
 public:
  explicit CountReads(Device& device) : device_(device) {
    device_.set_launch_check([this](Stream&, const device::LaunchInfo& info) { see(info); });
  }
  ~CountReads() { device_.set_launch_check({}); }
  Reads take() { return std::exchange(reads_, {}); }

 private:
  void see(const device::LaunchInfo& info) {
    const std::string name = info.name;
    if (name == "amax") measured_.insert(info.reads.at(0).data);
    const auto layouts = std::ranges::count_if(
        info.writes, [](const device::Access& w) { return w.dtype == DType::f8e5m2; });
    if (name == "transpose_float8") reads_.transposed += int(layouts);
    if (name == "norm_bwd" || name == "swiglu_bwd") reads_.written += int(layouts);
    if (name != "quantize") return;
    const bool measured = measured_.erase(info.reads.at(0).data) > 0;
    if (layouts == 0) return;
    reads_.measured += measured;
    ++(layouts == 1 ? reads_.apart : reads_.both);
  }
  Device& device_;
  std::set<const void*> measured_;
  Reads reads_;
};

// Returns the reads of the second step, which is the first with delayed scales.
std::vector<Reads> reads_of(const Changes& changes, int ranks) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Reads> reads(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    CountReads count(rank.device);
    t.step();
    reads[size_t(rank.rank())] = count.take();
  });
  return reads;
}

constexpr int kLayers = 2, kLinears = 4 * kLayers;
const Changes kThree{"train.micro_batch_size=2"};

}  // namespace

TEST_CASE("an output gradient is read once for both its layouts, and never for its maximum") {
  for (const bool delayed : {false, true})
    for (const Changes& more :
         {kThree,
          with(kThree, {"recompute.granularity=full", "recompute.method=uniform",
                        "recompute.num_layers=1"}),
          with(kThree, {"model.architecture=gpt2", "model.num_query_groups=4"})}) {
      CAPTURE(delayed, more);
      Run run(with(delayed ? kDelayed : kTensorwise, more));
      CountReads count(*run.device);
      const int all = 3 * kLinears, qkv = 3 * kLayers;
      run.losses(1);  // the first step has current scales in any case
      CHECK(count.take() == Reads{.measured = delayed ? all : 0, .both = all});
      run.losses(1);
      // Kernels of norms and of swiglu quantize, those of attention and of gelu do not.
      const int others =
          run.recipe.model.architecture == recipe::Architecture::gpt2 ? 2 * qkv : qkv;
      CHECK(count.take() ==
            (delayed ? Reads{.both = others, .written = all - others, .transposed = all - others}
                     : Reads{.both = all}));
    }
}

TEST_CASE("GEMMs that take parts of an output gradient share only its scale") {
  const Changes sequence{"distributed.strategy=megatron_ddp", "distributed.tp_size=2",
                         "distributed.sequence_parallel=true"},
      pipeline{"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
               "distributed.vpp_size=1", "train.micro_batch_size=2"};
  for (const bool delayed : {false, true}) {
    CAPTURE(delayed);
    const auto reads = [&](const Changes& layout) {
      return reads_of(with(delayed ? kDelayed : kTensorwise, layout), 2);
    };
    // `written`: under delayed scales, how many of the gradients for both GEMMs are quantized by
    // the kernels that write them.
    const auto expect = [&](int measured, int apart, int both, int written) {
      return delayed ? Reads{0, apart, both - written, written, written}
                     : Reads{measured, apart, both};
    };
    const auto on_both = [](const Reads& r) { return std::vector<Reads>(2, r); };
    // Gathered gradients have rows that kernels of other ranks wrote; fc1's is not gathered.
    CHECK(reads(sequence) == on_both(expect(4, 0, 8, 2)));
    // The gradients of proj and fc2 are multiplied in two chunks, each with its own scale; the full
    // gradient for the weight gradient has a third.
    CHECK(reads(with(sequence, {"comm_overlap.tp_comm_overlap=true"})) ==
          on_both(expect(4 * 3, 4 * 3, 4, 2)));
    // The first stage receives the gradient of its last layer.
    const std::vector<Reads> stages{expect(3, 0, 3 * 4, 3 * 2), expect(0, 0, 3 * 4, 3 * 3)};
    CHECK(reads(with(pipeline, {"distributed.pipeline={}"})) == stages);
    const Changes waiting = with(pipeline, {"distributed.pipeline.pp_schedule=zero_bubble"});
    CHECK(reads(waiting) == stages);
    // With biases, a gradient is quantized again for a weight gradient that waits; not all of them
    // wait.
    const auto biases =
        reads(with(waiting, {"model.architecture=gpt2", "model.num_query_groups=4"}));
    CHECK(biases[0].apart > 0);
    for (size_t rank = 0; rank < 2; ++rank) {
      CHECK(biases[rank].measured == stages[rank].measured);
      const Reads& r = biases[rank];
      CHECK(r.apart + 2 * r.both + r.written + r.transposed == 2 * 3 * 4);
    }
  }
}

TEST_CASE("graphs read output gradients as single launches do, to the same bits") {
  for (const bool delayed : {false, true}) {
    CAPTURE(delayed);
    Recipe r = tiny(with(delayed ? kDelayed : kTensorwise, kThree));
    std::vector<double> losses[2];
    std::vector<float> weights[2];
    for (const bool graphs : {false, true}) {
      r.train.device = recipe::DeviceChoice::cuda;  // whose graphs the backend records
      r.train.enable_cuda_graph = graphs;
      auto backend = std::make_unique<RecordingBackend>();
      const RecordingBackend& recorder = *backend;
      const auto device = Device::on(std::move(backend), {.stream_sanitizer = true});
      train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
      for (int i = 0; i < 5; ++i) losses[graphs].push_back(t.step().loss);
      weights[graphs] = full_weights(t);
      if (!graphs) continue;
      CHECK(t.graphs()->replays() > 0);
      // Every linear quantizes three times: its gradient, and its input for forward and for
      // backward. Under delayed scales the kernels that write four inputs and three gradients of a
      // layer quantize them. Their 8 bits are transposed for the weight gradient, except for
      // attention's output, which is kept as floats.
      const int layers = recorder.captured("matmul_fc1_wgrad"), linears = 4 * layers;
      CHECK(layers > 0);
      CHECK(recorder.captured("quantize") == (delayed ? 2 * layers : 3 * linears));
      CHECK(recorder.captured("transpose_float8") == (delayed ? 6 * layers : 0));
      CHECK(recorder.captured("amax") == 0);
      CHECK(recorder.captured("scale_from_amax") == (delayed ? 0 : 2 * linears));
    }
    CHECK(losses[0] == losses[1]);
    CHECK((weights[0] == weights[1]));
  }
}

namespace {

struct Gradients {
  std::vector<float> dx, dw, db;
  std::string scales;
  bool operator==(const Gradients&) const = default;
};

// Returns the gradients of a linear over two micro-batches, with current scales or with those of
// the next step. If its weight gradients wait, they come after both input gradients; with a bias,
// each is then quantized separately. `written`: the kernels that write inputs and output gradients
// find their maxima; with the scales of the next step they leave 8 bits, too.
Gradients gradients_of(bool delayed, bool bias, int64_t T, DType gradient, bool wait,
                       bool written = false) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  constexpr int64_t I = 48, O = 80;
  model::ParamStore params;
  const auto quantizer = std::make_shared<model::Quantizer>(model::QuantizerOptions{
      .formats = {.gradient = {gradient}}, .delayed = delayed, .history = 2});
  std::vector<spec::TensorSpec> tensors{
      {.name = "a.linear.weight", .full_shape = {O, I}, .std = 0.1f}};
  if (bias)
    tensors.push_back({.name = "a.linear.bias",
                       .full_shape = {O},
                       .role = TensorRole::vector,
                       .init = spec::Init::zeros});
  const auto linear =
      plain_linear(params, model::LinearSpec({model::UnitKind::layer, 0}, tensors, "a.linear",
                                             LayerGemm::fc1, quantizer));
  params.materialize(stream, DType::bf16, true);
  params.initialize(stream, 3);
  quantizer->materialize(stream);
  const auto random = [&](const char* name, int64_t rows, int64_t columns, float std) {
    std::vector<float> values(size_t(rows * columns));
    fill_normal(rng_key(5, name), 0, rows * columns, std, values.data());
    const Tensor wide = Tensor::from_host<float>(stream, {rows, columns}, values),
                 x = Tensor::empty(stream, {rows, columns}, DType::bf16);
    ops::cast(stream, wide, x);
    return x;
  };
  Gradients out;
  for (int step = 0; step < 2; ++step) {
    params.zero_grads(stream);
    model::WgradQueue wgrad;
    wgrad.hold(wait);
    model::Stash stash;
    model::SequenceInfo seq;
    model::Step s{.compute = stream, .wgrad = wgrad, .stash = &stash, .seq = seq};
    for (const char* micro_batch : {"first", "second"}) {
      const ops::Destination none{}, x_to = written ? linear->input(true) : none,
                                     dy_to = written ? linear->gradient() : none;
      CHECK(x_to.quantizes() == (written && delayed && step > 0));
      const auto kernel = [&](int64_t columns, float std, const ops::Destination& to) {
        ops::Written y = ops::gelu(stream, random(micro_batch, T, columns, std), true, to);
        if (to.quantizes()) {
          y.quantized = ops::quantize(stream, y.plain, to.format, to.scale, to.amax);
          y.amax = to.amax;
          if (!to.needs_plain) y.plain = {};
        }
        return y;
      };
      model::LinearOperand x = kernel(I, 1, x_to);
      const ops::Written dy = kernel(O, step ? 0.02f : 0.01f, dy_to);
      linear->forward(s, x);
      const auto dx = linear->backward(s, x, dy).to_host_float(stream);
      out.dx.insert(out.dx.end(), dx.begin(), dx.end());
    }
    CHECK(wgrad.held() == (wait ? 2 : 0));
    wgrad.drain();
    for (const model::Parameter* p : params.params()) {
      const auto g = p->grad.to_host<float>(stream);
      auto& to = p->shape.rank() == 2 ? out.dw : out.db;
      to.insert(to.end(), g.begin(), g.end());
    }
    quantizer->end_step(stream, [](const Tensor&, model::UnitKind) {});
  }
  out.scales = quantizer->state(stream);
  return out;
}

}  // namespace

TEST_CASE("an output gradient's two layouts have the bits that each has apart") {
  for (const bool delayed : {false, true})
    for (const DType gradient : {DType::f8e4m3, DType::f8e5m2})
      for (const int64_t T : {1, 37, 64}) {
        CAPTURE(delayed, gradient, T);
        const auto gradients = [&](bool bias, bool wait) {
          return gradients_of(delayed, bias, T, gradient, wait);
        };
        const Gradients apart = gradients(true, true);
        CHECK(*std::ranges::max_element(apart.dw) > 0);
        CHECK((gradients(true, false) == apart));
        for (const bool wait : {false, true}) {
          Gradients without = gradients(false, wait);
          without.db = apart.db;
          CHECK((without == apart));
        }
        CHECK((gradients_of(delayed, true, T, gradient, false, true) == apart));
        CHECK((gradients_of(delayed, true, T, gradient, true, true) == apart));
        Gradients without = gradients_of(delayed, false, T, gradient, false, true);
        without.db = apart.db;
        CHECK((without == apart));
      }
}

}  // namespace parity_fp8_gradients_test
