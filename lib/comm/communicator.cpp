#include "comm/communicator.h"

namespace mtrain::comm {

std::string all_to_all_name(const std::vector<AllToAllSpans>& tensors) {
  std::string name = "all_to_all of ";
  for (const AllToAllSpans& tensor : tensors) {
    if (&tensor != &tensors[0]) name += ", ";
    name += dtype_name(tensor.in.dtype);
  }
  return name;
}

}  // namespace mtrain::comm
