#include "comm/store_protocol.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace mtrain::comm {

Nonce make_nonce() {
  static_assert(sizeof(Nonce) == Token::kBytes);
  return Token::random().bytes;
}

Proof make_proof(const Token& token, StoreEnd end, const Nonce& client, const Nonce& server) {
  std::string text = end == StoreEnd::server ? "server" : "client";
  text.append(bytes_of(client)).append(bytes_of(server));
  Proof proof;
  unsigned size = 0;
  const bool done = HMAC(EVP_sha256(), token.bytes.data(), int(token.bytes.size()),
                         reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                         proof.data(), &size) != nullptr;
  MT_CHECK(done && size == proof.size(), "HMAC-SHA256 of {} bytes", size);
  return proof;
}

bool same_proof(const Proof& a, std::string_view b) {
  return b.size() == a.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void append_text(std::string& out, std::string_view text) {
  const auto size = htonl(uint32_t(text.size()));
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += text;
}

std::string request_text(char operation, std::string_view key, std::string_view value) {
  std::string text(1, operation);
  append_text(text, key);
  append_text(text, value);
  return text;
}

std::optional<std::string_view> take_text(std::string_view in, size_t& at, size_t most) {
  uint32_t size;
  if (in.size() < at + sizeof size) return std::nullopt;
  std::memcpy(&size, in.data() + at, sizeof size);
  size = ntohl(size);
  if (size > most) throw CommError(fmt::format("a text of {} bytes", size));
  if (in.size() - at - sizeof size < size) return std::nullopt;
  const std::string_view text = in.substr(at + sizeof size, size);
  at += sizeof size + size;
  return text;
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

}  // namespace mtrain::comm
