#include "interchange/tensor_map.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace mtrain::interchange {

namespace {

using recipe::ModelConfig;

// Replaces "{l}" or "{e}" by a number.
std::string put(std::string_view name, std::string_view what, int64_t number) {
  std::string text(name);
  if (const size_t at = text.find(what); at != std::string::npos)
    text.replace(at, what.size(), std::to_string(number));
  return text;
}

// These say whether a layer of a model has a tensor.
bool always(const ModelConfig&, int64_t) { return true; }
bool learned(const ModelConfig& m, int64_t) {
  return m.position_embedding == recipe::PositionEmbedding::learned;
}
bool biased_norms(const ModelConfig& m, int64_t) {
  return m.add_bias_linear && m.normalization == recipe::Normalization::layernorm;
}
bool input_norms(const ModelConfig& m, int64_t) {
  return m.norm_placement != recipe::NormPlacement::post;
}
bool output_norms(const ModelConfig& m, int64_t) {
  return m.norm_placement != recipe::NormPlacement::pre;
}
bool biased_input_norms(const ModelConfig& m, int64_t l) {
  return biased_norms(m, l) && input_norms(m, l);
}
bool biased_output_norms(const ModelConfig& m, int64_t l) {
  return biased_norms(m, l) && output_norms(m, l);
}
bool qkv_bias(const ModelConfig& m, int64_t) { return m.qkv_bias(); }
bool proj_bias(const ModelConfig& m, int64_t) { return m.proj_bias(); }
bool head_norms(const ModelConfig& m, int64_t) { return m.qk_layernorm; }
bool gated(const ModelConfig& m, int64_t l) { return !m.has_experts(l) && m.gated(); }
bool plain(const ModelConfig& m, int64_t l) { return !m.has_experts(l) && !m.gated(); }
bool plain_bias(const ModelConfig& m, int64_t l) { return plain(m, l) && m.fc_bias(); }
bool gated_bias(const ModelConfig& m, int64_t l) { return gated(m, l) && m.fc_bias(); }
bool dense(const ModelConfig& m, int64_t l) { return !m.has_experts(l); }
bool dense_bias(const ModelConfig& m, int64_t l) { return dense(m, l) && m.fc_bias(); }
bool experts(const ModelConfig& m, int64_t l) { return m.has_experts(l); }
bool router_bias(const ModelConfig& m, int64_t l) {
  return m.has_experts(l) && m.moe.has_router_bias();
}
bool shared(const ModelConfig& m, int64_t l) {
  return m.has_experts(l) && m.moe.shared_expert_ffn_hidden_size.value_or(0) > 0;
}
bool shared_gate(const ModelConfig& m, int64_t l) {
  return shared(m, l) && m.moe.shared_expert_gate;
}
bool untied(const ModelConfig& m, int64_t) { return !m.share_embeddings_and_output_weights; }

int64_t qkv_rows(const ModelConfig& m) {
  return (m.num_attention_heads + 2 * m.kv_heads()) * m.head_dim();
}
int64_t query_rows(const ModelConfig& m) { return m.num_attention_heads * m.head_dim(); }
// Returns the width of the norm of queries, or of keys, which have so many heads.
int64_t norm_of_heads(const ModelConfig& m, int64_t heads) {
  return (m.qk_layernorm_all_heads ? heads : 1) * m.head_dim();
}
int64_t expert_ffn(const ModelConfig& m) { return m.moe.ffn_hidden_size.value_or(m.ffn_size()); }
int64_t shared_ffn(const ModelConfig& m) { return m.moe.shared_expert_ffn_hidden_size.value_or(0); }

// mtrain's tensors in their order. A name with {l} is one for each layer.
struct OwnTensor {
  std::string_view name;
  bool (*exists)(const ModelConfig&, int64_t layer);
  Shape (*shape)(const ModelConfig&);
  bool is_state = false;
};
using M = ModelConfig;
const OwnTensor kEmbedding[] = {
    {"embedding.weight", always,
     [](const M& m) {
       return Shape{m.vocab_size, m.hidden_size};
     }},
    {"position_embedding.weight", learned, [](const M& m) {
       return Shape{m.max_position_embeddings.value_or(0), m.hidden_size};
     }}};
const OwnTensor kLayer[] = {
    {"layers.{l}.attention.norm.weight", input_norms,
     [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.attention.norm.bias", biased_input_norms,
     [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.attention.qkv.weight", always,
     [](const M& m) {
       return Shape{qkv_rows(m), m.hidden_size};
     }},
    {"layers.{l}.attention.qkv.bias", qkv_bias, [](const M& m) { return Shape{qkv_rows(m)}; }},
    {"layers.{l}.attention.proj.weight", always,
     [](const M& m) {
       return Shape{m.hidden_size, query_rows(m)};
     }},
    {"layers.{l}.attention.proj.bias", proj_bias, [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.attention.q_norm.weight", head_norms,
     [](const M& m) { return Shape{norm_of_heads(m, m.num_attention_heads)}; }},
    {"layers.{l}.attention.k_norm.weight", head_norms,
     [](const M& m) { return Shape{norm_of_heads(m, m.kv_heads())}; }},
    {"layers.{l}.attention.out_norm.weight", output_norms,
     [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.attention.out_norm.bias", biased_output_norms,
     [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.mlp.norm.weight", input_norms, [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.mlp.norm.bias", biased_input_norms,
     [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.mlp.gate_up.weight", gated,
     [](const M& m) {
       return Shape{2 * m.ffn_size(), m.hidden_size};
     }},
    {"layers.{l}.mlp.gate_up.bias", gated_bias, [](const M& m) { return Shape{2 * m.ffn_size()}; }},
    {"layers.{l}.mlp.up.weight", plain,
     [](const M& m) {
       return Shape{m.ffn_size(), m.hidden_size};
     }},
    {"layers.{l}.mlp.up.bias", plain_bias, [](const M& m) { return Shape{m.ffn_size()}; }},
    {"layers.{l}.mlp.down.weight", dense,
     [](const M& m) {
       return Shape{m.hidden_size, m.ffn_size()};
     }},
    {"layers.{l}.mlp.down.bias", dense_bias, [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.mlp.router.weight", experts,
     [](const M& m) {
       return Shape{m.moe.num_experts, m.hidden_size};
     }},
    {"layers.{l}.mlp.router.bias", router_bias, [](const M& m) { return Shape{m.moe.num_experts}; },
     true},
    {"layers.{l}.mlp.shared_expert.gate_up.weight", shared,
     [](const M& m) {
       return Shape{2 * shared_ffn(m), m.hidden_size};
     }},
    {"layers.{l}.mlp.shared_expert.down.weight", shared,
     [](const M& m) {
       return Shape{m.hidden_size, shared_ffn(m)};
     }},
    {"layers.{l}.mlp.shared_expert.gate.weight", shared_gate,
     [](const M& m) {
       return Shape{1, m.hidden_size};
     }},
    {"layers.{l}.mlp.out_norm.weight", output_norms,
     [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.mlp.out_norm.bias", biased_output_norms,
     [](const M& m) { return Shape{m.hidden_size}; }},
    {"layers.{l}.mlp.experts.gate_up.weight", experts,
     [](const M& m) {
       return Shape{m.moe.num_experts, 2 * expert_ffn(m), m.hidden_size};
     }},
    {"layers.{l}.mlp.experts.down.weight", experts, [](const M& m) {
       return Shape{m.moe.num_experts, m.hidden_size, expert_ffn(m)};
     }}};
const OwnTensor kOutput[] = {
    {"final_norm.weight", always, [](const M& m) { return Shape{m.hidden_size}; }},
    {"final_norm.bias", biased_norms, [](const M& m) { return Shape{m.hidden_size}; }},
    {"output.weight", untied, [](const M& m) {
       return Shape{m.vocab_size, m.hidden_size};
     }}};

// Returns rows [begin, end) of a matrix with `rows` rows that a tensor of theirs holds.
std::pair<int64_t, int64_t> range(const ModelConfig& m, Rows which, int64_t rows) {
  const int64_t q = query_rows(m), kv = m.kv_heads() * m.head_dim();
  switch (which) {
    case Rows::all: return {0, rows};
    case Rows::query: return {0, q};
    case Rows::key: return {q, q + kv};
    case Rows::value: return {q + kv, q + 2 * kv};
    case Rows::gate: return {0, rows / 2};
    case Rows::up: return {rows / 2, rows};
  }
  return {0, 0};
}

// Returns the pieces of one matrix of mtrain's (or vector, or all matrices of three dimensions),
// which begins at element `first` and has the name of theirs that `name` makes of a row's.
template <class Name>
void add_pieces(const ModelConfig& m, const TensorRow& row, const Shape& matrix, int64_t first,
                const Name& name, MappedTensor& out) {
  const auto [begin, end] = range(m, row.rows, matrix[0]);
  const int64_t columns = matrix.count() / matrix[0];
  Shape shape = matrix;
  shape[0] = end - begin;
  if (row.transposed) shape = {columns, end - begin};
  out.pieces.push_back(
      {name(row.theirs), shape, out.name, first + begin * columns, row.transposed});
}

}  // namespace

NameForm NameForm::of(const Family& family, const std::function<bool(std::string_view)>& contains) {
  NameForm form;
  const auto theirs = [&](const TensorRow& row) { return put(row.theirs, "{l}", 0); };
  for (const TensorRow& row : family.rows)
    if (row.ours == "embedding.weight")
      form.prefix = contains(std::string(family.prefix) + theirs(row)) || !contains(theirs(row));
  // Layers without experts may come first.
  for (const TensorRow& row : family.fused)
    for (int64_t layer = 0; layer < 64; ++layer)
      form.fused = form.fused || (row.ours.find(".experts.") != std::string_view::npos &&
                                  contains((form.prefix ? std::string(family.prefix) : "") +
                                           put(row.theirs, "{l}", layer)));
  return form;
}

TensorMap::TensorMap(const ModelConfig& m, const Family& family, const NameForm& form)
    : family_(&family) {
  std::vector<TensorRow> rows = family.rows;
  if (form.fused) {
    std::erase_if(rows, [&](const TensorRow& row) {
      return std::ranges::count(family.fused, row.ours, &TensorRow::ours) > 0;
    });
    rows.insert(rows.end(), family.fused.begin(), family.fused.end());
  }
  const auto full = [&](std::string_view theirs) {
    const bool of_base = form.prefix && !theirs.starts_with("lm_head.");
    return (of_base ? std::string(family.prefix) : "") + std::string(theirs);
  };
  const auto add = [&](const OwnTensor& own, int64_t layer) {
    if (!own.exists(m, layer)) return;
    MappedTensor t{put(own.name, "{l}", layer), own.shape(m), {}, own.is_state};
    const auto one_matrix = [&](const TensorRow& row) {
      return row.ours == own.name && row.theirs.find("{e}") != std::string_view::npos;
    };
    const bool separate = t.shape.rank() == 3 && std::ranges::any_of(rows, one_matrix);
    const int64_t matrices = separate ? t.shape[0] : 1;
    const Shape matrix = t.shape.rank() == 3 ? Shape{t.shape[1], t.shape[2]} : t.shape;
    for (int64_t e = 0; e < matrices; ++e)
      for (const TensorRow& row : rows) {
        if (row.ours != own.name) continue;
        const bool one = one_matrix(row);
        if (!one && e > 0) continue;  // theirs has all matrices
        const auto name = [&](std::string_view theirs) {
          return full(put(put(theirs, "{l}", layer), "{e}", e));
        };
        add_pieces(m, row, one ? matrix : t.shape, e * matrix.count(), name, t);
      }
    int64_t next = 0;
    for (const TensorPiece& p : t.pieces) {
      MT_CHECK(p.first == next, "{} begins at {} of {}, not at {}", p.theirs, p.first, t.name,
               next);
      next += p.count();
    }
    MT_CHECK(next == t.shape.count(), "{} has names for {} of the {} elements of {}",
             family.model_type, next, t.shape.count(), t.name);
    for (size_t i = 0; i < t.pieces.size(); ++i) theirs_[t.pieces[i].theirs] = {tensors_.size(), i};
    ours_[t.name] = tensors_.size();
    tensors_.push_back(std::move(t));
  };
  for (const OwnTensor& own : kEmbedding) add(own, 0);
  for (int64_t layer = 0; layer < m.num_layers; ++layer)
    for (const OwnTensor& own : kLayer) add(own, layer);
  for (const OwnTensor& own : kOutput) add(own, 0);
  if (m.share_embeddings_and_output_weights)
    for (const TensorRow& row : rows)
      if (row.ours == "output.weight") tied_copy_ = full(row.theirs);
}

const MappedTensor* TensorMap::find(std::string_view ours) const {
  const auto at = ours_.find(ours);
  return at == ours_.end() ? nullptr : &tensors_[at->second];
}

const TensorPiece* TensorMap::find_theirs(std::string_view name) const {
  const auto at = theirs_.find(name);
  return at == theirs_.end() ? nullptr : &tensors_[at->second.first].pieces[at->second.second];
}

std::vector<const TensorPiece*> TensorMap::pieces() const {
  std::vector<const TensorPiece*> all;
  for (const MappedTensor& t : tensors_)
    for (const TensorPiece& p : t.pieces) all.push_back(&p);
  return all;
}

int64_t TensorMap::parameters() const {
  int64_t sum = 0;
  for (const MappedTensor& t : tensors_)
    if (!t.is_state) sum += t.shape.count();
  return sum;
}

}  // namespace mtrain::interchange
