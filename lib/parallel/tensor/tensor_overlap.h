// How the communication around each product of a layer hides behind it.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace mtrain {

struct ProductOverlap {
  enum class Method {
    none,           // compute awaits it
    bulk,           // whole, behind a product that does not need it
    ring_exchange,  // split by ranks: a chunk is multiplied while another travels
    pipeline        // the result's rows are reduced in chunks while others are multiplied
  };
  Method method = Method::none;
  int64_t splits = 4;      // of a pipeline
  bool aggregate = false;  // a ring hands on two chunks at once; needs an even number of ranks > 2
};

// By product and pass: "qkv_fprop", "fc2_dgrad", "fc1_wgrad". Those that it lacks hide nothing.
class TensorOverlap {
 public:
  TensorOverlap() = default;
  explicit TensorOverlap(std::map<std::string, ProductOverlap> products)
      : products_(std::move(products)) {}
  ProductOverlap of(const std::string& product, const char* pass) const {
    const auto at = products_.find(product + "_" + pass);
    return at == products_.end() ? ProductOverlap() : at->second;
  }

 private:
  std::map<std::string, ProductOverlap> products_;
};

}  // namespace mtrain
