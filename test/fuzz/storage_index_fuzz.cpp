// Any text is refused as an index of shards with a UserError, or names files of its own folder.
#include "base/error.h"
#include "storage/safetensors_folder.h"

using namespace mtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const auto& [tensor, file] : storage::parse_safetensors_index("fuzz", text))
      MT_CHECK(file.ends_with(".safetensors") && file.find('/') == file.npos, "{}", file);
  } catch (const UserError&) {
  }
  return 0;
}
