#include "base/content_hash.h"

#include <fmt/core.h>
#include <xxhash.h>
#include <new>

namespace mtrain {

namespace {
XXH3_state_t* state_of(void* state) { return static_cast<XXH3_state_t*>(state); }
}  // namespace

void ContentHash::Free::operator()(void* state) const { XXH3_freeState(state_of(state)); }

ContentHash::ContentHash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void ContentHash::reset() { XXH3_128bits_reset(state_of(state_.get())); }

ContentHash& ContentHash::add(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(state_of(state_.get()), data, bytes);
  return *this;
}

std::string ContentHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_of(state_.get()));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string content_hash(std::string_view bytes) { return ContentHash().add(bytes).hex(); }

}  // namespace mtrain
