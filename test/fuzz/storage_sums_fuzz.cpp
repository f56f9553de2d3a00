// Any text is refused as the checksums of a file, or has one for each of its blocks.
#include "base/error.h"
#include "storage/file_sums.h"

using namespace mtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const storage::FileSums sums("fuzz", text);
    int64_t bytes = 0;
    for (int64_t block = 0; block < sums.blocks(); ++block) {
      const int64_t n = sums.size_of(block);
      MT_CHECK(n > 0 && n <= storage::kSumsBlock, "block {} has {} bytes", block, n);
      bytes += n;
    }
    MT_CHECK(bytes == sums.bytes(), "{} blocks have {} of {} bytes", sums.blocks(), bytes,
             sums.bytes());
    const std::byte none[1] = {};
    if (sums.blocks() > 0) sums.check(0, none);
  } catch (const RunError&) {
  }
  return 0;
}
