#include "interchange/tensor_map.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace mtrain::interchange {

namespace {

// Replaces `what`, which is "{l}" or "{e}", by a number.
std::string put(std::string_view name, std::string_view what, int64_t number) {
  std::string text(name);
  if (const size_t at = text.find(what); at != std::string::npos)
    text.replace(at, what.size(), std::to_string(number));
  return text;
}

// A tensor's name with {l} instead of its layer's number, and that number.
struct LayerName {
  explicit LayerName(const std::string& name) : pattern(name) {
    constexpr std::string_view kLayers = "layers.";
    if (!name.starts_with(kLayers)) return;
    const size_t end = name.find('.', kLayers.size());
    layer = std::stoll(name.substr(kLayers.size(), end - kLayers.size()));
    pattern = "layers.{l}" + name.substr(end);
  }
  std::string pattern;
  int64_t layer = 0;
};

// Returns the rows [begin, end) of mtrain's matrix that a Hugging Face tensor holds. `own` lists
// the sections of its rows by their meaning.
std::pair<int64_t, int64_t> range(const spec::TensorSpec& own, Rows which, int64_t rows) {
  if (which == Rows::all) return {0, rows};
  int64_t begin = 0;
  for (const spec::RowSection& s : own.split.sections) {
    if (s.rows == which) return {begin, begin + s.count()};
    begin += s.count();
  }
  throw BugError(own.name + " has no rows of this meaning");
}

// Adds the piece of mtrain's matrix (or vector, or three-dimensional tensor) that `row` selects.
// The matrix begins at element `first`. `name` makes the piece's name from the name in `row`.
template <class Name>
void add_pieces(const spec::TensorSpec& own, const TensorRow& row, const Shape& matrix,
                int64_t first, const Name& name, MappedTensor& out) {
  const auto [begin, end] = range(own, row.rows, matrix[0]);
  const int64_t columns = matrix.count() / matrix[0];
  Shape shape = matrix;
  shape[0] = end - begin;
  if (row.transposed) shape = {columns, end - begin};
  out.pieces.push_back(
      {name(row.hf_name), shape, out.name, first + begin * columns, row.transposed});
}

}  // namespace

NameForm NameForm::of(const Family& family, const std::function<bool(std::string_view)>& contains) {
  NameForm form;
  const auto hf_name = [&](const TensorRow& row) { return put(row.hf_name, "{l}", 0); };
  for (const TensorRow& row : family.rows)
    if (row.name == "embedding.weight")
      form.prefix = contains(std::string(family.prefix) + hf_name(row)) || !contains(hf_name(row));
  // The first layers may have no experts.
  for (const TensorRow& row : family.fused)
    for (int64_t layer = 0; layer < 64; ++layer)
      form.fused = form.fused || (row.name.find(".experts.") != std::string_view::npos &&
                                  contains((form.prefix ? std::string(family.prefix) : "") +
                                           put(row.hf_name, "{l}", layer)));
  return form;
}

TensorMap::TensorMap(const spec::ModelSpec& m, const Family& family, const NameForm& form)
    : family_(&family) {
  std::vector<TensorRow> rows = family.rows;
  if (form.fused) {
    std::erase_if(rows, [&](const TensorRow& row) {
      return std::ranges::count(family.fused, row.name, &TensorRow::name) > 0;
    });
    rows.insert(rows.end(), family.fused.begin(), family.fused.end());
  }
  const auto full = [&](std::string_view hf_name) {
    const bool of_base = form.prefix && !hf_name.starts_with("lm_head.");
    return (of_base ? std::string(family.prefix) : "") + std::string(hf_name);
  };
  for (const spec::TensorSpec& own : spec::tensors(m)) {
    const LayerName of(own.name);
    MappedTensor t{own.name, own.full_shape, {}, own.role == TensorRole::state};
    const auto one_matrix = [&](const TensorRow& row) {
      return row.name == of.pattern && row.hf_name.find("{e}") != std::string_view::npos;
    };
    const bool separate = t.shape.rank() == 3 && std::ranges::any_of(rows, one_matrix);
    const int64_t matrices = separate ? t.shape[0] : 1;
    const Shape matrix = t.shape.rank() == 3 ? Shape{t.shape[1], t.shape[2]} : t.shape;
    for (int64_t e = 0; e < matrices; ++e)
      for (const TensorRow& row : rows) {
        if (row.name != of.pattern) continue;
        const bool one = one_matrix(row);
        if (!one && e > 0) continue;  // this tensor holds all matrices
        const auto name = [&](std::string_view hf_name) {
          return full(put(put(hf_name, "{l}", of.layer), "{e}", e));
        };
        add_pieces(own, row, one ? matrix : t.shape, e * matrix.count(), name, t);
      }
    int64_t next = 0;
    for (const TensorPiece& p : t.pieces) {
      MT_CHECK(p.first == next, "{} begins at {} of {}, not at {}", p.hf_name, p.first, t.name,
               next);
      next += p.count();
    }
    MT_CHECK(next == t.shape.count(), "{} has names for {} of the {} elements of {}",
             family.model_type, next, t.shape.count(), t.name);
    for (size_t i = 0; i < t.pieces.size(); ++i)
      by_hf_name_[t.pieces[i].hf_name] = {tensors_.size(), i};
    by_name_[t.name] = tensors_.size();
    tensors_.push_back(std::move(t));
  }
  if (m.tied_embeddings)
    for (const TensorRow& row : rows)
      if (row.name == "output.weight") tied_copy_ = full(row.hf_name);
  add_copies(m, full);
}

void TensorMap::add_copies(const spec::ModelSpec& m,
                           const std::function<std::string(std::string_view)>& full) {
  for (int64_t layer = m.main_layers(); layer < m.layer_count(); ++layer)
    for (const TensorRow& row : family_->copies) {
      const bool tied = m.tied_embeddings && row.name == "output.weight";
      const MappedTensor* table = find(tied ? "embedding.weight" : row.name);
      MT_CHECK(table, "{} copies a tensor that the model lacks", row.hf_name);
      copies_.push_back({full(put(row.hf_name, "{l}", layer)), table->shape, table->name});
    }
}

const MappedTensor* TensorMap::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

const TensorPiece* TensorMap::find_hf(std::string_view name) const {
  const auto at = by_hf_name_.find(name);
  const auto copy = std::ranges::find(copies_, name, &TensorPiece::hf_name);
  if (copy != copies_.end()) return &*copy;
  return at == by_hf_name_.end() ? nullptr : &tensors_[at->second.first].pieces[at->second.second];
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
