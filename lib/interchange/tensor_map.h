// The tensor map: which elements of mtrain's tensors each tensor of a Hugging Face folder holds.
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

// A Hugging Face tensor, which holds consecutive elements of mtrain's tensor from `first` on. If
// transposed, its shape is (inputs, outputs), and mtrain's matrix there is (outputs, inputs).
struct TensorPiece {
  std::string hf_name;
  Shape shape;        // of the Hugging Face tensor
  std::string name;   // the name of mtrain's tensor
  int64_t first = 0;  // the index of the first element in mtrain's tensor
  bool transposed = false;

  int64_t count() const { return shape.count(); }
};

// A tensor of mtrain under its global name, as in checkpoints, without padding.
struct MappedTensor {
  std::string name;
  Shape shape;
  std::vector<TensorPiece> pieces;  // in the order of the tensor's elements, without gaps
  // Not a parameter, but state that training updates by a rule of its own, such as a router's
  // selection biases. It is fp32, whatever the dtype of the weights.
  bool is_state = false;
};

// How a folder spells the names of its tensors.
struct NameForm {
  bool prefix = true;  // false: a folder of the base model, without "model." or "transformer."
  bool fused = false;  // true: one tensor holds all experts of a layer
  // Returns the form of a folder; `contains` says whether the folder has a tensor.
  static NameForm of(const Family& family, const std::function<bool(std::string_view)>& contains);
};

class TensorMap {
 public:
  // Throws BugError if the family has no name for a tensor of the model. The functions of config.h
  // decide which models a family can express.
  TensorMap(const spec::ModelSpec& model, const Family& family, const NameForm& form = {});

  const Family& family() const { return *family_; }
  const std::vector<MappedTensor>& tensors() const { return tensors_; }
  const MappedTensor* find(std::string_view name) const;    // null: no such tensor
  const TensorPiece* find_hf(std::string_view name) const;  // null: no such tensor
  std::vector<const TensorPiece*> pieces() const;           // of all tensors
  // The copies of tables that a folder may have for multi-token prediction. Exports write them.
  const std::vector<TensorPiece>& copies() const { return copies_; }
  int64_t parameters() const;  // elements of all parameters
  // Returns the name of the output layer's copy of the table that a folder with tied embeddings may
  // have; "" if they are not tied.
  const std::string& tied_copy() const { return tied_copy_; }

 private:
  void add_copies(const spec::ModelSpec& model,
                  const std::function<std::string(std::string_view)>& full);

  const Family* family_;
  std::vector<MappedTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::pair<size_t, size_t>, std::less<>> by_hf_name_;
  std::string tied_copy_;
  std::vector<TensorPiece> copies_;
};

}  // namespace mtrain::interchange
