// index.json of a checkpoint of format 2, which several ranks have written. It is the manifest of
// the folder (manifest.h), and lists the tensors as well. A tensor is divided into pieces; a piece
// is a one-dimensional tensor of a file, named `<tensor>@<its first element>`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/strided_run.h"
#include "storage/manifest.h"

namespace mtrain::storage {

// A checkpoint has two sets of tensors. A user of the model needs the first alone.
enum class TensorSet : uint8_t { weights, optimizer };
std::string_view tensor_set_name(TensorSet set);  // "weights", also the start of its files' names

struct Piece {
  int32_t file = 0;  // of CheckpointIndex::files
  StridedRun run;    // the elements of the full tensor that the piece has, in this order
};
std::string piece_name(std::string_view tensor, const StridedRun& run);

struct PiecedTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Piece> pieces;
};
using PiecedTensors = std::map<std::string, PiecedTensor, std::less<>>;

struct CheckpointIndex {
  std::vector<std::string> files;  // those that hold tensors
  PiecedTensors weights, optimizer;

  PiecedTensors& of(TensorSet set) { return set == TensorSet::weights ? weights : optimizer; }
  const PiecedTensors& of(TensorSet set) const {
    return set == TensorSet::weights ? weights : optimizer;
  }
};

// Returns the shape with these dimensions, at most 4.
Shape shape_of(const std::vector<int64_t>& dims);

// "weights-00003.safetensors"
std::string shard_file_name(TensorSet set, int rank);

// Writes index.json of the files in the folder, whose .sums files must exist. `sums` has the hashes
// of those .sums files that are known; the others are read. The caller makes the file durable by
// sync_tree(). Throws RunError.
void write_index(const std::filesystem::path& folder, int64_t step, const CheckpointIndex& index,
                 const std::map<std::string, std::string>& sums);

// Reads the tensors of index.json, whose manifest is `manifest`. Throws RunError, which names the
// file, if it is damaged. Checks that the pieces of each tensor have as many elements as the
// tensor, all of them within it.
CheckpointIndex read_index(const std::filesystem::path& folder, const Manifest& manifest);
// The same for the text of index.json, without its checksum.
CheckpointIndex parse_index(const std::filesystem::path& path, std::string_view text,
                            const Manifest& manifest);

// The text of a list of pieces: "<file>:<first>+<count>" of each, with "x<times>/<stride>" after it
// if the piece has several runs. Throws UserError for another text.
std::string pieces_text(const std::vector<Piece>& pieces);
std::vector<Piece> parse_pieces(std::string_view text);

}  // namespace mtrain::storage
