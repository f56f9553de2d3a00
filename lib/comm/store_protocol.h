// The bytes that the store and its clients exchange, and the bounds on them.
//
// A connection begins with a mutual proof that both ends know the job's token; nothing else is
// sent before:
//   client: greeting, nonce
//   server: greeting, nonce, HMAC-SHA256(token, "server", both nonces)
//   client: HMAC-SHA256(token, "client", both nonces)
//   server: kWelcome
// Both nonces are new for every connection, so a recorded proof is worthless. Bytes are not
// encrypted afterwards.
//
// Then the client sends requests and the server answers each. A request is an operation, then
// length and bytes of a key and of a value. A reply is length and bytes. Its first byte says
// whether the rest is an answer (kAnswer) or the reason why the request failed (kNone).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/token.h"

namespace mtrain::comm {

// With it neither end mistakes another program, or another version, for its peer.
constexpr std::string_view kStoreGreeting = "mtrain store 4\n";
constexpr size_t kNonceBytes = 32, kProofBytes = 32;
constexpr size_t kHelloBytes = kStoreGreeting.size() + kNonceBytes;
constexpr char kWelcome = '!';

constexpr char kSet = 'S', kGet = 'G', kAdd = 'A', kRemove = 'R', kFail = 'F';
constexpr char kAnswer = '+', kNone = '-';
constexpr size_t kMaxKeyBytes = 64 << 10;   // a key may name all ranks of a group
constexpr size_t kMaxValueBytes = 4 << 20;  // such as a recipe, or the addresses of all ranks
constexpr size_t kMaxReasonBytes = 2000;    // why a job has failed

using Nonce = std::array<uint8_t, kNonceBytes>;
using Proof = std::array<uint8_t, kProofBytes>;

enum class StoreEnd { server, client };
Nonce make_nonce();
Proof make_proof(const Token& token, StoreEnd end, const Nonce& client, const Nonce& server);
bool same_proof(const Proof& a, std::string_view b);  // takes the same time for all bytes
// A nonce or a proof as it is sent.
inline std::string_view bytes_of(const std::array<uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void append_text(std::string& out, std::string_view text);  // length and bytes
std::string request_text(char operation, std::string_view key, std::string_view value);

// Reads a length-prefixed text at `at`, and advances `at` past it. Returns nothing while the text
// is incomplete. Throws CommError if the text is longer than `most`.
std::optional<std::string_view> take_text(std::string_view in, size_t& at, size_t most);

// Parses an integer; returns nothing if the text has any other character.
std::optional<int64_t> parse_number(std::string_view text);

}  // namespace mtrain::comm
