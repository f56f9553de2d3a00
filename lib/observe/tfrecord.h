// TensorFlow's format of record files: each record has its length and checksums.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace mtrain::observe {

uint32_t crc32c(std::string_view bytes);  // Castagnoli's polynomial, as in RFC 3720

// Returns the checksum that a record has of `bytes`: a CRC that was computed over data with CRCs in
// it would be weak, so each is changed by a fixed rule.
uint32_t masked_crc32c(std::string_view bytes);

// Returns a record: its length in 64 bits, the checksum of these, the data, and their checksum.
std::string tfrecord(std::string_view data);

}  // namespace mtrain::observe
