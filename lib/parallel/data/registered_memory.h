// Memory that a communication library has registered with the ranks that gather a unit.
#pragma once
#include "model/param/parameters.h"
#include "parallel/data/data_groups.h"

namespace mtrain::parallel {

class RegisteredMemory {
 public:
  // `symmetric`: the ranks' memory has the same offsets, so that copy engines may move gathers.
  RegisteredMemory(const DataGroups& groups, Stream& home, device::MemoryCategory category,
                   bool symmetric)
      : groups_(&groups), home_(&home), category_(category), symmetric_(symmetric) {}

  // The ranks that gather units call it for the same units in the same order, each before its first
  // gather. Returns an absent tensor if the library registers no memory; rank 0 then warns once.
  Tensor operator()(const model::ParamUnit& unit, int64_t count, DType dtype);

 private:
  const DataGroups* groups_;
  Stream* home_;
  device::MemoryCategory category_;
  bool symmetric_, warned_ = false;
};

}  // namespace mtrain::parallel
