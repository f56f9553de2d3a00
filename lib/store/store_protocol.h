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
// whether the rest is an answer (kAnswer) or the reason why the request failed (kNone and others).
//
// A round is one start of all ranks of a job. The first request of a client names its job and its
// round (kEnter): all its keys then belong to this round. A client of a later round than the
// server's waits for that round. A client of an earlier one gets only the reason why it must end.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace mtrain::store {

// With it neither end mistakes another program, or another version, for its peer.
constexpr std::string_view kStoreGreeting = "mtrain store 5\n";
constexpr size_t kNonceBytes = 32, kProofBytes = 32;
constexpr size_t kHelloBytes = kStoreGreeting.size() + kNonceBytes;
constexpr char kWelcome = '!';

constexpr char kEnter = 'E', kSet = 'S', kGet = 'G', kAdd = 'A', kRemove = 'R', kFail = 'F';
// A collection has one text of each of its members, which are numbered from 0. A member puts its
// text (kPut), any client waits until all have done so and gets all texts (kAll), or asks which are
// missing (kMissing). Ranks thus exchange texts with two requests each.
constexpr char kPut = 'P', kAll = 'L', kMissing = 'M';
constexpr char kAnswer = '+', kNone = '-';
constexpr char kOldRound = '<', kOtherJob = '#';  // as kNone, for two reasons that clients act on
constexpr size_t kMaxKeyBytes = 64 << 10;         // a key may name all ranks of a group
constexpr size_t kMaxValueBytes = 4 << 20;        // such as a recipe, or the addresses of all ranks
constexpr size_t kMaxReasonBytes = 2000;          // why a job has failed
constexpr int64_t kMaxMembers = 1 << 18;          // of a collection
// The round of launchers, whose keys outlive the rounds of ranks.
constexpr int64_t kLaunchers = -1;
// Keys of the launchers' round that begin so are set by the server's own process alone.
constexpr std::string_view kNews = "news/";
// The keys that launchers set begin so. A connection sets one of them, its note, and gets news.
constexpr std::string_view kNotes = "launcher/";
constexpr size_t kMaxNoteKeyBytes = 1 << 10, kMaxNoteBytes = 64 << 10;

// A value that a launcher has set, and whether the connection that set it still exists.
struct LauncherValue {
  std::string text;
  bool connected = false;
};

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

// The texts of a collection in order, equal neighbours once.
std::string texts_in_runs(const std::vector<std::string>& texts);
// Throws CommError if these are not the runs of `size` texts.
std::vector<std::string> texts_of_runs(std::string_view runs, int64_t size);

// The value of kPut: the member, the number of members, and the member's text.
struct Membership {
  int64_t member = 0, size = 0;
  std::string_view text;
};
std::string membership_text(const Membership& m);
std::optional<Membership> parse_membership(
    std::string_view value);  // nothing if it is out of range

// Ascending numbers as "0-3,7".
std::string numbers_text(const std::vector<int64_t>& numbers);
// Throws CommError if the text is malformed, or has a number that is not below `size`.
std::vector<int64_t> parse_numbers(std::string_view text, int64_t size);

// Parses an integer; returns nothing if the text has any other character.
std::optional<int64_t> parse_number(std::string_view text);

}  // namespace mtrain::store
