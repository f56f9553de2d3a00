// Any text is refused as a generation_config.json with a UserError, or names ids that end a text.
#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

using namespace mtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    if (const auto ids = mtrain::data::parse_eos_ids(text, "fuzz"))
      for (const int32_t id : *ids) MT_CHECK(id >= 0, "{}", id);
  } catch (const UserError&) {
  }
  return 0;
}
