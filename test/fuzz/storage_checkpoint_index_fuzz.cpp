// Any text is refused as the index of a checkpoint, or lists pieces that lie in their tensors.
#include "base/error.h"
#include "storage/checkpoint_index.h"

using namespace mtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  storage::Manifest manifest;
  manifest.sizes = {{"weights-00000.safetensors", 1}, {"a", 1}};
  try {
    const storage::CheckpointIndex index = storage::parse_index("fuzz", text, manifest);
    for (const auto& [name, tensor] : index.weights)
      for (const storage::Piece& p : tensor.pieces)
        MT_CHECK(p.run.first >= 0 && p.run.end() <= tensor.shape.count() && p.run.count > 0 &&
                     size_t(p.file) < index.files.size(),
                 "a piece of {}", name);
  } catch (const RunError&) {
  }
  return 0;
}
