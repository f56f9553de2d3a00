#include "run/assumed_bytes.h"

#include <utility>

#include "base/log.h"
#include "interchange/byte_tokenizer.h"

namespace mtrain::run {

void AssumedBytes::continue_from(const std::filesystem::path& checkpoint) {
  exceeded_before_ = interchange::exceeds_bytes(checkpoint);
}

bool AssumedBytes::exceeded() const {
  return assumed_ && (exceeded_before_ || ids_.largest() >= interchange::kByteVocabulary);
}

bool AssumedBytes::exceeded_on_any(const comm::HostCollectives& control) const {
  return assumed_ && control.any(exceeded());
}

void AssumedBytes::warn() {
  if (!exceeded() || std::exchange(warned_, true)) return;
  log::warn(
      fmt::format("the recipe names no tokenizer, and the data hold ids above {}, which are not "
                  "bytes: name tokenizer.path, or tokenizer.type: NullTokenizer; training "
                  "continues, but generate and eval will need the tokenizer",
                  interchange::kByteEnd));
}

}  // namespace mtrain::run
