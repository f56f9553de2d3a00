// Finds out whether a run whose recipe names no tokenizer trains on bytes, as is assumed.
#pragma once
#include <filesystem>

#include "comm/host_collectives.h"
#include "data/dataset/id_check.h"

namespace mtrain::run {

class AssumedBytes {
 public:
  // `assumed`: the recipe names no tokenizer. `ids` has the largest id that this rank has read.
  AssumedBytes(bool assumed, const data::IdCheck& ids) : assumed_(assumed), ids_(ids) {}

  // The run continues from this checkpoint, which says what the earlier steps have read.
  void continue_from(const std::filesystem::path& checkpoint);
  // Whether bytes are assumed, and ids beyond them were read on any rank. All ranks must call it.
  bool exceeded_on_any(const comm::HostCollectives& control) const;
  // Warns, once, if this rank has read such ids.
  void warn();

 private:
  bool exceeded() const;

  const bool assumed_;
  const data::IdCheck& ids_;
  bool exceeded_before_ = false;
  bool warned_ = false;
};

}  // namespace mtrain::run
