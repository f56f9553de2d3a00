#include "kernels/cuda/cudnn/plan.h"

#include <array>
#include <string>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int64_t kBorder = 256;  // bytes: alignment of the tensors in the workspace

std::string describe_status(const CudnnApi& api, CudnnStatus status) {
  std::array<char, 512> said{};
  api.last_error_string(said.data(), said.size());
  return fmt::format("{} ({}){}{}", api.error_string(status), int(status), said[0] ? ": " : "",
                     said.data());
}

void check(const CudnnApi& api, CudnnStatus status, const std::string& call) {
  if (status == CudnnStatus::success) return;
  throw RunError(fmt::format("{} failed: {}", call, describe_status(api, status)));
}

CudnnDataType data_type(Element e) {
  switch (e) {
    case Element::f32: return CudnnDataType::float32;
    case Element::bf16: return CudnnDataType::bfloat16;
    case Element::f16: return CudnnDataType::float16;
    case Element::i32: return CudnnDataType::int32;
    case Element::boolean: return CudnnDataType::boolean;
  }
  throw BugError("an element type without a name in cuDNN");
}

CudnnPointwise pointwise_mode(Operation kind) {
  switch (kind) {
    case Operation::add: return CudnnPointwise::add;
    case Operation::sub: return CudnnPointwise::sub;
    case Operation::mul: return CudnnPointwise::mul;
    case Operation::div: return CudnnPointwise::div;
    case Operation::exp: return CudnnPointwise::exp;
    case Operation::log: return CudnnPointwise::log;
    case Operation::identity: return CudnnPointwise::identity;
    case Operation::index: return CudnnPointwise::generate_index;
    case Operation::greater: return CudnnPointwise::compare_greater;
    case Operation::greater_equal: return CudnnPointwise::compare_greater_equal;
    case Operation::less: return CudnnPointwise::compare_less;
    case Operation::logical_and: return CudnnPointwise::logical_and;
    case Operation::select: return CudnnPointwise::binary_select;
    case Operation::matmul:
    case Operation::reshape:
    case Operation::reduce_add:
    case Operation::reduce_max: break;
  }
  throw BugError("an operation that is not pointwise");
}

template <class T>
constexpr CudnnType type_of() {
  if constexpr (std::is_same_v<T, CudnnDataType>) return CudnnType::data_type;
  if constexpr (std::is_same_v<T, CudnnPointwise>) return CudnnType::pointwise_mode;
  if constexpr (std::is_same_v<T, CudnnReduction>) return CudnnType::reduction_operator;
  if constexpr (std::is_same_v<T, CudnnHeuristicMode>) return CudnnType::heuristic_mode;
  if constexpr (std::is_same_v<T, bool>) return CudnnType::boolean;
  if constexpr (std::is_same_v<T, int64_t>) return CudnnType::int64;
  if constexpr (std::is_same_v<T, void*>) return CudnnType::descriptor;
  if constexpr (std::is_same_v<T, cudnnContext*>) return CudnnType::handle;
}

}  // namespace

// Makes the descriptors; the plan owns them.
class CudnnPlan::Builder {
 public:
  Builder(CudnnPlan& plan, const CudnnPlace& place, const CudnnPlanOptions& options)
      : plan_(plan), api_(plan.api_), place_(place), options_(options) {}

  void build() {
    for (const GraphTensor& t : plan_.graph_.tensors()) tensors_[t.id] = tensor(t);
    std::vector<void*> operations;
    for (const GraphOperation& o : plan_.graph_.operations()) operations.push_back(operation(o));
    void* const graph = create(CudnnDescriptor::operation_graph);
    if (place_.handle) set(graph, CudnnAttribute::operation_graph_handle, place_.handle);
    set(graph, CudnnAttribute::operation_graph_operations, operations);
    finalize(graph, "the operation graph");
    for (const auto mode : {CudnnHeuristicMode::a, CudnnHeuristicMode::fallback})
      if (choose(graph, mode)) return;
    if (!too_large_.empty()) throw CudnnWorkspaceError(too_large_);
    throw RunError(refusal_.empty() ? "cuDNN names no engine for it" : refusal_);
  }

 private:
  void* create(CudnnDescriptor kind) {
    void* made = nullptr;
    check(api_, api_.create_descriptor(kind, &made), "cudnnBackendCreateDescriptor");
    plan_.descriptors_.push_back(made);
    return made;
  }
  template <class T>
  void set(void* descriptor, CudnnAttribute name, const std::vector<T>& values) {
    check(api_,
          api_.set_attribute(descriptor, name, type_of<T>(), int64_t(values.size()), values.data()),
          fmt::format("cudnnBackendSetAttribute of attribute {}", int(name)));
  }
  template <class T>
  void set(void* descriptor, CudnnAttribute name, const T& value) {
    check(api_, api_.set_attribute(descriptor, name, type_of<T>(), 1, &value),
          fmt::format("cudnnBackendSetAttribute of attribute {}", int(name)));
  }
  void finalize(void* descriptor, const char* what) {
    check(api_, api_.finalize(descriptor), fmt::format("cudnnBackendFinalize of {}", what));
  }

  void* tensor(const GraphTensor& t) {
    void* const d = create(CudnnDescriptor::tensor);
    set(d, CudnnAttribute::tensor_data_type, data_type(t.type));
    set(d, CudnnAttribute::tensor_dimensions, t.dims);
    set(d, CudnnAttribute::tensor_strides, t.strides);
    set(d, CudnnAttribute::tensor_unique_id, t.id);
    set(d, CudnnAttribute::tensor_byte_alignment, int64_t(16));
    set(d, CudnnAttribute::tensor_is_virtual, t.place == GraphTensor::Place::inside);
    set(d, CudnnAttribute::tensor_is_by_value, t.place == GraphTensor::Place::value);
    if (t.offsets != 0) set(d, CudnnAttribute::tensor_ragged_offset, tensors_.at(t.offsets));
    finalize(d, "a tensor");
    return d;
  }

  void* operation(const GraphOperation& o) {
    switch (o.kind) {
      case Operation::matmul: return matmul(o);
      case Operation::reshape: return reshape(o);
      case Operation::reduce_add:
      case Operation::reduce_max: return reduction(o);
      default: return pointwise(o);
    }
  }
  void* matmul(const GraphOperation& o) {
    void* const how = create(CudnnDescriptor::matmul);
    set(how, CudnnAttribute::matmul_compute_type, data_type(o.compute));
    finalize(how, "a matmul");
    void* const d = create(CudnnDescriptor::operation_matmul);
    set(d, CudnnAttribute::operation_matmul_a, tensors_.at(o.inputs[0]));
    set(d, CudnnAttribute::operation_matmul_b, tensors_.at(o.inputs[1]));
    set(d, CudnnAttribute::operation_matmul_c, tensors_.at(o.output));
    set(d, CudnnAttribute::operation_matmul_descriptor, how);
    const auto limit = [&](CudnnAttribute name, int64_t length) {
      if (length != 0) set(d, name, tensors_.at(length));
    };
    limit(CudnnAttribute::operation_matmul_m_override, o.lengths.M);
    limit(CudnnAttribute::operation_matmul_n_override, o.lengths.N);
    limit(CudnnAttribute::operation_matmul_k_override, o.lengths.K);
    finalize(d, "a matmul's operation");
    return d;
  }
  void* reshape(const GraphOperation& o) {
    void* const d = create(CudnnDescriptor::operation_reshape);
    set(d, CudnnAttribute::operation_reshape_x, tensors_.at(o.inputs[0]));
    set(d, CudnnAttribute::operation_reshape_y, tensors_.at(o.output));
    finalize(d, "a reshape's operation");
    return d;
  }
  void* reduction(const GraphOperation& o) {
    void* const how = create(CudnnDescriptor::reduction);
    set(how, CudnnAttribute::reduction_compute_type, data_type(o.compute));
    set(how, CudnnAttribute::reduction_operator,
        o.kind == Operation::reduce_max ? CudnnReduction::max : CudnnReduction::add);
    finalize(how, "a reduction");
    void* const d = create(CudnnDescriptor::operation_reduction);
    set(d, CudnnAttribute::operation_reduction_descriptor, how);
    set(d, CudnnAttribute::operation_reduction_x, tensors_.at(o.inputs[0]));
    set(d, CudnnAttribute::operation_reduction_y, tensors_.at(o.output));
    finalize(d, "a reduction's operation");
    return d;
  }
  void* pointwise(const GraphOperation& o) {
    void* const how = create(CudnnDescriptor::pointwise);
    set(how, CudnnAttribute::pointwise_mode, pointwise_mode(o.kind));
    set(how, CudnnAttribute::pointwise_math_precision, data_type(o.compute));
    if (o.kind == Operation::index) set(how, CudnnAttribute::pointwise_axis, o.axis);
    finalize(how, "a pointwise operation");
    void* const d = create(CudnnDescriptor::operation_pointwise);
    set(d, CudnnAttribute::operation_pointwise_descriptor, how);
    constexpr CudnnAttribute kInputs[] = {CudnnAttribute::operation_pointwise_x,
                                          CudnnAttribute::operation_pointwise_b,
                                          CudnnAttribute::operation_pointwise_t};
    for (size_t i = 0; i < o.inputs.size(); ++i) set(d, kInputs[i], tensors_.at(o.inputs[i]));
    set(d, CudnnAttribute::operation_pointwise_y, tensors_.at(o.output));
    finalize(d, "a pointwise operation's operands");
    return d;
  }

  // Tries the engines that this mode of the heuristics returns. Returns whether one became the
  // plan.
  bool choose(void* graph, CudnnHeuristicMode mode) {
    for (void* const config : named_by(graph, mode)) try {
        const int number = named_++;
        if (number < options_.first_engine) continue;
        if (options_.deterministic && is_nondeterministic(config)) {
          refusal_ = "cuDNN's engines for it are not deterministic";
          continue;
        }
        void* const plan = create(CudnnDescriptor::execution_plan);
        set(plan, CudnnAttribute::plan_engine_config, config);
        finalize(plan, "an execution plan");
        int64_t count = 0, bytes = 0;
        check(api_,
              api_.get_attribute(plan, CudnnAttribute::plan_workspace_size, CudnnType::int64, 1,
                                 &count, &bytes),
              "cudnnBackendGetAttribute of a plan's workspace");
        if (bytes > options_.max_workspace) {
          too_large_ = fmt::format("cuDNN needs {} MiB of workspace for it, and {} MiB are allowed",
                                   bytes >> 20, options_.max_workspace >> 20);
          continue;
        }
        plan_.plan_ = plan;
        plan_.engine_ = number;
        plan_.library_workspace_ = bytes;
        return true;
      } catch (const RunError& e) {
        refusal_ = e.message();  // the next engine may accept the graph
      }
    return false;
  }

  // Engine configurations, the best first.
  std::vector<void*> named_by(void* graph, CudnnHeuristicMode mode) {
    void* const heuristics = create(CudnnDescriptor::heuristics);
    set(heuristics, CudnnAttribute::heuristics_operation_graph, graph);
    set(heuristics, CudnnAttribute::heuristics_mode, mode);
    if (!place_.handle && place_.device_properties)
      set(heuristics, CudnnAttribute::heuristics_device_properties, place_.device_properties);
    try {
      finalize(heuristics, "the heuristics");
    } catch (const RunError& e) {
      refusal_ = e.message();
      return {};
    }
    const auto get = [&](int64_t room, int64_t* count, void* into) {
      check(api_,
            api_.get_attribute(heuristics, CudnnAttribute::heuristics_results,
                               CudnnType::descriptor, room, count, into),
            "cudnnBackendGetAttribute of the heuristics' results");
    };
    int64_t count = 0;
    get(0, &count, nullptr);
    std::vector<void*> configs;
    for (int64_t i = 0; i < count; ++i) configs.push_back(create(CudnnDescriptor::engine_config));
    if (count > 0) get(count, &count, configs.data());
    configs.resize(size_t(count));
    return configs;
  }

  bool is_nondeterministic(void* config) {
    void* engine = create(CudnnDescriptor::engine);
    int64_t count = 0;
    check(api_,
          api_.get_attribute(config, CudnnAttribute::engine_config_engine, CudnnType::descriptor, 1,
                             &count, &engine),
          "cudnnBackendGetAttribute of a configuration's engine");
    std::array<CudnnNote, kCudnnNotes> notes{};
    check(api_,
          api_.get_attribute(engine, CudnnAttribute::engine_numerical_note,
                             CudnnType::numerical_note, kCudnnNotes, &count, notes.data()),
          "cudnnBackendGetAttribute of an engine's notes");
    for (int64_t i = 0; i < std::min(count, kCudnnNotes); ++i)
      if (notes[size_t(i)] == CudnnNote::nondeterministic) return true;
    return false;
  }

  CudnnPlan& plan_;
  const CudnnApi& api_;
  CudnnPlace place_;
  CudnnPlanOptions options_;
  std::map<int64_t, void*> tensors_;
  int named_ = 0;  // the number of engines that the heuristics have returned so far
  std::string refusal_, too_large_;  // why no engine has become the plan so far
};

CudnnPlan::CudnnPlan(const CudnnApi& api, const CudnnPlace& place, OperationGraph graph,
                     const CudnnPlanOptions& options)
    : api_(api), graph_(std::move(graph)) {
  try {
    Builder(*this, place, options).build();
  } catch (...) {
    for (auto d = descriptors_.rbegin(); d != descriptors_.rend(); ++d) api_.destroy_descriptor(*d);
    throw;
  }
  workspace_ = round_up(library_workspace_, kBorder);
  for (const GraphTensor& t : graph_.tensors())
    if (t.place == GraphTensor::Place::workspace) workspace_ += round_up(t.bytes(), kBorder);
}

CudnnPlan::~CudnnPlan() {
  for (auto d = descriptors_.rbegin(); d != descriptors_.rend(); ++d) api_.destroy_descriptor(*d);
}

std::string CudnnPlan::execute(cudnnContext* handle, const std::map<int64_t, const void*>& memory,
                               void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  auto* free = static_cast<char*>(workspace) + round_up(library_workspace_, kBorder);
  for (const GraphTensor& t : graph_.tensors()) {
    const void* address = nullptr;
    switch (t.place) {
      case GraphTensor::Place::inside: continue;
      case GraphTensor::Place::memory: address = memory.at(t.id); break;
      case GraphTensor::Place::value: address = &t.value; break;
      case GraphTensor::Place::workspace:
        address = free;
        free += round_up(t.bytes(), kBorder);
        break;
    }
    ids.push_back(t.id);
    addresses.push_back(const_cast<void*>(address));  // the library writes only to outputs
  }
  void* pack = nullptr;
  check(api_, api_.create_descriptor(CudnnDescriptor::variant_pack, &pack),
        "cudnnBackendCreateDescriptor");
  struct Destroy {
    const CudnnApi& api;
    void* descriptor;
    ~Destroy() { api.destroy_descriptor(descriptor); }
  } const destroy{api_, pack};
  const auto set = [&](CudnnAttribute name, CudnnType type, size_t count, const void* values) {
    check(api_, api_.set_attribute(pack, name, type, int64_t(count), values),
          "cudnnBackendSetAttribute of a variant pack");
  };
  set(CudnnAttribute::variant_pack_unique_ids, CudnnType::int64, ids.size(), ids.data());
  set(CudnnAttribute::variant_pack_data_pointers, CudnnType::void_ptr, addresses.size(),
      addresses.data());
  set(CudnnAttribute::variant_pack_workspace, CudnnType::void_ptr, 1, &workspace);
  check(api_, api_.finalize(pack), "cudnnBackendFinalize of a variant pack");
  const CudnnStatus status = api_.execute(handle, plan_, pack);
  if (is_refusal(status)) return "cudnnBackendExecute refuses: " + describe_status(api_, status);
  check(api_, status, "cudnnBackendExecute");
  return "";
}

}  // namespace mtrain::kernels::cuda
