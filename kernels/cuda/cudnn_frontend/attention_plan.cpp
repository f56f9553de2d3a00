// The only source that includes cuDNN's C++ frontend, whose headers take half a minute and 1.1 GB
// to compile. The frontend finds cuDNN's functions in the library that cudnn_library() loads.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "kernels/cuda/cudnn/attention_plan.h"

#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include <fmt/core.h>

#include "kernels/cuda/cudnn/api.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend's own name for the loaded library
}

namespace mtrain::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Sizes = std::vector<int64_t>;

void set_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    // The frontend asks CUDA's runtime for one function of the driver. Without this variable it
    // would look for the runtimes of all versions, and warn if there are two.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME",
           fmt::format("libcudart.so.{}", CUDART_VERSION / 1000).c_str(), 0);
    fe::cudnn_dlhandle = cudnn_library().handle;
  });
}

void check(const fe::error_t& status) {
  if (status.is_bad()) throw RunError(status.err_msg);
}

fe::DataType_t data_type(DType type) {
  switch (type) {
    case DType::f32: return fe::DataType_t::FLOAT;
    case DType::bf16: return fe::DataType_t::BFLOAT16;
    case DType::f16: return fe::DataType_t::HALF;
    case DType::i32: return fe::DataType_t::INT32;
    default: throw BugError("an element type that attention does not have");
  }
}

// Builds the graph of a key. The caller's tensors have their AttentionTensor as unique id.
class Builder {
 public:
  Builder(const CudnnAttentionKey& key, const CudnnPlace& place)
      : key_(key), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(data_type(key.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(place.architecture)
        // Plans live as long as the process, and therefore longer than each captured CUDA graph.
        .set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
    key.backward ? backward() : forward();
  }
  const std::shared_ptr<fe::graph::Graph>& graph() const { return graph_; }

 private:
  int64_t rows() const { return key_.documents ? key_.longest : key_.Sq; }
  int64_t keys() const { return key_.documents ? key_.longest : key_.Skv; }

  Tensor ints(int64_t id, int64_t count) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(id)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }
  fe::graph::Tensor_attributes described(int64_t id, const Sizes& dims, const Sizes& strides,
                                         DType type) {
    fe::graph::Tensor_attributes t;
    t.set_uid(id).set_dim(dims).set_stride(strides).set_data_type(data_type(type));
    if (key_.documents) t.set_ragged_offset(ints(offsets_of(id), key_.B + 1));
    return t;
  }
  // Element (b, s, h, d) of a view is at (s B + b) token_stride + h D + d; of packed documents at
  // offsets[b] + s token_stride + h D + d.
  fe::graph::Tensor_attributes view(int64_t id, int64_t S, int64_t heads, int64_t token_stride,
                                    DType type) {
    const bool of_values = id == kValue || id == kOut || id == kOutGradient || id == kValueGradient;
    const int64_t D = of_values ? key_.Dv : key_.D;
    // With one sequence the stride between sequences is not used; it gets a valid value.
    const bool one = key_.documents || key_.B == 1;
    return described(id, {key_.B, heads, S, D},
                     {one ? S * token_stride : token_stride, D,
                      key_.documents ? token_stride : key_.B * token_stride, 1},
                     type);
  }
  fe::graph::Tensor_attributes query(int64_t id, int64_t token_stride, DType type) {
    return view(id, rows(), key_.A, token_stride, type);
  }
  fe::graph::Tensor_attributes of_keys(int64_t id, int64_t token_stride, DType type) {
    return view(id, keys(), key_.G, token_stride, type);
  }
  fe::graph::Tensor_attributes lse() {
    const int64_t all = key_.lse_heads * rows();
    return described(kLse, {key_.B, key_.A, rows(), 1},
                     key_.documents ? Sizes{all, 1, key_.lse_heads, 1} : Sizes{all, rows(), 1, 1},
                     DType::f32);
  }
  // Gives a result of the graph the caller's memory.
  static void put(const Tensor& result, fe::graph::Tensor_attributes at) {
    result->set_output(true)
        .set_uid(at.get_uid())
        .set_dim(at.get_dim())
        .set_stride(at.get_stride())
        .set_data_type(at.get_data_type());
    if (at.get_ragged_offset()) result->set_ragged_offset(at.get_ragged_offset());
  }

  fe::DiagonalAlignment_t alignment() const {
    return key_.bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                             : fe::DiagonalAlignment_t::TOP_LEFT;
  }
  // A window of w keys has the left bound w: column + w > row, from the aligned diagonal.
  std::optional<int64_t> left_bound() const {
    return key_.window > 0 ? std::optional<int64_t>(key_.window) : std::nullopt;
  }
  // Caps the scores, then masks them: with a cap, the frontend masks nothing by itself.
  Tensor capped(const std::shared_ptr<fe::graph::Graph>& graph, Tensor scores) {
    namespace modifiers = fe::graph::attn::score_modifiers;
    scores =
        softcap_->forward(graph, scores, std::make_shared<fe::graph::Tensor_attributes>(key_.cap));
    if (!key_.causal) return scores;
    return modifiers::sliding_window_mask(graph, scores, alignment(), left_bound(), 0, rows(),
                                          keys(), nullptr, nullptr);
  }
  template <class Attributes>
  void set_mask(Attributes& attributes) {
    if (key_.documents)
      attributes.set_padding_mask(true)
          .set_seq_len_q(ints(kQueryLengths, key_.B))
          .set_seq_len_kv(ints(kKeyLengths, key_.B));
    if (key_.cap > 0) {
      attributes.set_score_mod([this](std::shared_ptr<fe::graph::Graph> graph, Tensor scores) {
        return capped(graph, std::move(scores));
      });
      return;
    }
    if (!key_.causal) return;
    attributes.set_diagonal_alignment(alignment()).set_diagonal_band_right_bound(0);
    if (key_.window > 0) attributes.set_diagonal_band_left_bound(int(key_.window));
  }

  void forward() {
    fe::graph::SDPA_attributes attributes;
    attributes.set_name("attention")
        .set_generate_stats(true)
        .set_attn_scale(key_.scale)
        .set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    set_mask(attributes);
    const auto [out, stats] =
        graph_->sdpa(graph_->tensor(query(kQuery, key_.q, key_.type)),
                     graph_->tensor(of_keys(kKey, key_.k, key_.type)),
                     graph_->tensor(of_keys(kValue, key_.v, key_.type)), std::move(attributes));
    put(out, query(kOut, key_.out, key_.out_type));
    put(stats, lse());
  }

  void backward() {
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_name("attention_backward")
        .set_attn_scale(key_.scale)
        .set_deterministic_algorithm(key_.deterministic);
    set_mask(attributes);
    if (key_.cap > 0)
      attributes.set_score_mod_bprop(
          [this](std::shared_ptr<fe::graph::Graph> graph, Tensor gradient) {
            return softcap_->backward(graph, std::move(gradient),
                                      std::make_shared<fe::graph::Tensor_attributes>(key_.cap));
          });
    // Memory for sums then has the size of the tokens, not of B documents of the longest's size.
    if (key_.documents)
      attributes.set_max_total_seq_len_q(key_.Sq).set_max_total_seq_len_kv(key_.Skv);
    const auto [dq, dk, dv] =
        graph_->sdpa_backward(graph_->tensor(query(kQuery, key_.q, key_.type)),
                              graph_->tensor(of_keys(kKey, key_.k, key_.type)),
                              graph_->tensor(of_keys(kValue, key_.v, key_.type)),
                              graph_->tensor(query(kOut, key_.out, key_.type)),
                              graph_->tensor(query(kOutGradient, key_.dout, key_.type)),
                              graph_->tensor(lse()), std::move(attributes));
    put(dq, query(kQueryGradient, key_.dq, key_.dq_type));
    put(dk, of_keys(kKeyGradient, key_.dk, key_.dkv_type));
    put(dv, of_keys(kValueGradient, key_.dv, key_.dkv_type));
  }

  const CudnnAttentionKey& key_;
  std::shared_ptr<fe::graph::Graph> graph_;
  // The backward of the cap reads what the forward has computed.
  std::shared_ptr<fe::graph::attn::score_modifiers::Softcap> softcap_ =
      std::make_shared<fe::graph::attn::score_modifiers::Softcap>();
};

class Plan final : public CudnnAttentionPlan {
 public:
  Plan(const CudnnAttentionKey& key, const CudnnPlace& place, const CudnnPlanOptions& options) {
    const Builder builder(key, place);
    graph_ = builder.graph();
    if (!place.handle) {
      const auto gpu = std::make_shared<fe::DeviceProperties>();
      check(gpu->deserialize({place.description.begin(), place.description.end()}));
      graph_->set_device_properties(gpu);
    }
    check(graph_->validate());
    check(place.handle ? graph_->build_operation_graph(place.handle)
                       : graph_->build_operation_graph());
    check(graph_->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
    if (key.deterministic) graph_->deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    choose(options);
  }

  int64_t workspace() const override { return workspace_; }
  int engine() const override { return engine_; }
  std::string name() const override {
    std::string text;
    check(graph_->get_plan_name_at_index(engine_, text));
    return text;
  }
  std::string execute(cudnnContext* handle, const CudnnAddresses& memory,
                      void* workspace) const override {
    std::unordered_map<int64_t, void*> addresses;
    for (const auto& [tensor, address] : memory)
      addresses[tensor] = const_cast<void*>(address);  // the library writes only to outputs
    const fe::error_t status = graph_->execute_plan_at_index(handle, addresses, workspace, engine_);
    if (status.is_good()) return "";
    if (is_refusal(status)) return status.err_msg;
    throw RunError(status.err_msg);
  }

 private:
  // Returns whether cuDNN has refused the call before it began: "bad parameter" (for example too
  // little workspace) and "not supported", with any cause. The frontend writes the status last.
  static bool is_refusal(const fe::error_t& status) {
    if (status.code == fe::error_code_t::INVALID_VARIANT_PACK) return true;
    const std::string& text = status.err_msg;
    const size_t at = text.rfind("and code: ");
    if (at == std::string::npos) return false;
    return text.find("CUDNN_STATUS_BAD_PARAM", at) != std::string::npos ||
           text.find("CUDNN_STATUS_NOT_SUPPORTED", at) != std::string::npos;
  }

  // Takes the first engine that builds and needs no more memory than is allowed.
  void choose(const CudnnPlanOptions& options) {
    std::string refusal = "cuDNN names no engine for it", too_large;
    const int64_t engines = graph_->get_execution_plan_count();
    for (int64_t i = options.first_engine; i < engines; ++i) {
      if (const auto status = graph_->build_plan_at_index(i); status.is_bad()) {
        // The frontend's word for engines that deselect_numeric_notes() has excluded.
        const bool excluded = status.err_msg == "Deselecting execution plan";
        refusal = excluded ? "cuDNN's engines for it are not deterministic" : status.err_msg;
        continue;
      }
      int64_t bytes = 0;
      check(graph_->get_workspace_size_plan_at_index(i, bytes));
      if (bytes > options.max_workspace) {
        too_large = fmt::format("cuDNN needs {} MiB of workspace for it, and {} MiB are allowed",
                                bytes >> 20, options.max_workspace >> 20);
        continue;
      }
      engine_ = int(i), workspace_ = bytes;
      return;
    }
    if (!too_large.empty()) throw CudnnWorkspaceError(too_large);
    throw RunError(refusal);
  }

  std::shared_ptr<fe::graph::Graph> graph_;
  int engine_ = 0;
  int64_t workspace_ = 0;
};

}  // namespace

std::string why_no_cudnn_frontend() { return ""; }
std::string cudnn_frontend_description() {
  return fmt::format("cudnn-frontend {}.{}.{}", CUDNN_FRONTEND_MAJOR_VERSION,
                     CUDNN_FRONTEND_MINOR_VERSION, CUDNN_FRONTEND_PATCH_VERSION);
}

std::unique_ptr<CudnnAttentionPlan> make_cudnn_attention_plan(const CudnnAttentionKey& key,
                                                              const CudnnPlace& place,
                                                              const CudnnPlanOptions& options) {
  set_library();
  try {
    return std::make_unique<Plan>(key, place, options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // the frontend throws its own types
    throw RunError(e.what());
  }
}

}  // namespace mtrain::kernels::cuda
