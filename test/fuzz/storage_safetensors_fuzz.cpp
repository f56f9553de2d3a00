// Any text is refused as the header of a safetensors file with a UserError, or describes tensors
// that cover the data exactly.
#include <cstring>

#include "base/error.h"
#include "storage/safetensors_header.h"

using namespace mtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t data_bytes = 0;  // the first bytes are the size of the data
  std::memcpy(&data_bytes, data, 8);
  data_bytes &= INT64_MAX;
  const std::string_view text(reinterpret_cast<const char*>(data) + 8, size - 8);
  if (data_bytes > uint64_t(INT64_MAX) - size) return 0;  // no file is so large
  try {
    const auto header = storage::parse_safetensors_header("fuzz", text, int64_t(data_bytes));
    int64_t at = storage::kSafetensorsLengthBytes + int64_t(text.size());
    for (const storage::StoredTensor& t : header.tensors) {
      MT_CHECK(t.begin == at && t.bytes >= 0 && t.count() >= 0, "{}", t.name);
      if (t.dtype) MT_CHECK(t.count() * dtype_size(*t.dtype) == t.bytes, "{}", t.name);
      at += t.bytes;
    }
    MT_CHECK(at == storage::kSafetensorsLengthBytes + int64_t(text.size() + data_bytes), "{}", at);
  } catch (const UserError&) {
  }
  return 0;
}
