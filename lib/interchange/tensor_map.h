// The tensor map: which elements of mtrain's tensors lie in which tensors of a Hugging Face folder.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"
#include "interchange/families.h"
#include "spec/model_spec.h"

namespace mtrain::interchange {

// A tensor of theirs: all of its elements, in its order, are those of mtrain's tensor from `first`
// on. Transposed, theirs (inputs, outputs) holds the matrix (outputs, inputs) that begins there.
struct TensorPiece {
  std::string theirs;
  Shape shape;        // of theirs
  std::string ours;   // the tensor of mtrain's that it is a piece of
  int64_t first = 0;  // element of ours
  bool transposed = false;

  int64_t count() const { return shape.count(); }
};

// A tensor of mtrain's under its global name, as checkpoints have it, without padding.
struct MappedTensor {
  std::string name;
  Shape shape;
  std::vector<TensorPiece> pieces;  // in the order of its elements, without gaps
  // Not a parameter, but state that training moves on by its own rule; fp32 beside weights of any
  // type.
  bool is_state = false;
};

// A folder spells the names of its tensors in one of these forms.
struct NameForm {
  bool prefix = true;  // false: a folder of the base model, without "model." or "transformer."
  bool fused = false;  // the experts of a layer are one tensor
  // Returns the form of a folder by the names that it `contains`.
  static NameForm of(const Family& family, const std::function<bool(std::string_view)>& contains);
};

class TensorMap {
 public:
  // Throws BugError if the family has no name for a tensor of the model: config.h says which models
  // a family can be.
  TensorMap(const spec::ModelSpec& model, const Family& family, const NameForm& form = {});

  const Family& family() const { return *family_; }
  const std::vector<MappedTensor>& tensors() const { return tensors_; }
  const MappedTensor* find(std::string_view ours) const;        // null: no such tensor
  const TensorPiece* find_theirs(std::string_view name) const;  // null: no such tensor
  std::vector<const TensorPiece*> pieces() const;               // of all tensors
  int64_t parameters() const;                                   // elements of all parameters
  // Returns what a folder of tied embeddings may call the output layer's copy of the table; "" if
  // they are not tied.
  const std::string& tied_copy() const { return tied_copy_; }

 private:
  const Family* family_;
  std::vector<MappedTensor> tensors_;
  std::map<std::string, size_t, std::less<>> ours_;
  std::map<std::string, std::pair<size_t, size_t>, std::less<>> theirs_;
  std::string tied_copy_;
};

}  // namespace mtrain::interchange
