#include "store/store_protocol.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace mtrain::store {

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

std::string texts_in_runs(const std::vector<std::string>& texts) {
  std::string runs;
  for (size_t begin = 0, end = 0; begin < texts.size(); begin = end) {
    while (end < texts.size() && texts[end] == texts[begin]) ++end;
    const auto count = htonl(uint32_t(end - begin));
    runs.append(reinterpret_cast<const char*>(&count), sizeof count);
    append_text(runs, texts[begin]);
  }
  return runs;
}

std::vector<std::string> texts_of_runs(std::string_view runs, int64_t size) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < runs.size();) {
    uint32_t count = 0;
    if (runs.size() - at < sizeof count) throw CommError("a run without its length");
    std::memcpy(&count, runs.data() + at, sizeof count);
    count = ntohl(count);
    at += sizeof count;
    const auto text = take_text(runs, at, kMaxValueBytes);
    if (!text || int64_t(count) > size - int64_t(texts.size()))
      throw CommError(fmt::format("runs that are not {} texts", size));
    texts.insert(texts.end(), count, std::string(*text));
  }
  if (int64_t(texts.size()) != size)
    throw CommError(fmt::format("{} texts instead of {}", texts.size(), size));
  return texts;
}

std::string membership_text(const Membership& m) {
  return fmt::format("{} {}\n{}", m.member, m.size, m.text);
}

std::optional<Membership> parse_membership(std::string_view value) {
  const size_t line = value.find('\n'), space = value.find(' ');
  if (line == std::string_view::npos || space > line) return std::nullopt;
  const auto member = parse_number(value.substr(0, space)),
             size = parse_number(value.substr(space + 1, line - space - 1));
  if (!member || !size || *size < 1 || *size > kMaxMembers || *member < 0 || *member >= *size)
    return std::nullopt;
  return Membership{*member, *size, value.substr(line + 1)};
}

std::string numbers_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    text += fmt::format("{}{}", begin == 0 ? "" : ",", numbers[begin]);
    if (end > begin + 1) text += fmt::format("-{}", numbers[end - 1]);
  }
  return text;
}

std::vector<int64_t> parse_numbers(std::string_view text, int64_t size) {
  std::vector<int64_t> numbers;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    const size_t dash = range.find('-');
    const auto first = parse_number(range.substr(0, dash)),
               last = dash == std::string_view::npos ? first : parse_number(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= size ||
        (!numbers.empty() && *first <= numbers.back()))
      throw CommError(fmt::format("`{}` is not a list of numbers", range.substr(0, 100)));
    for (int64_t n = *first; n <= *last; ++n) numbers.push_back(n);
    text.remove_prefix(std::min(range.size() + 1, text.size()));
  }
  return numbers;
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

}  // namespace mtrain::store
