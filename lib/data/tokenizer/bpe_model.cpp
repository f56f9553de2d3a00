#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kNoPair = ~uint64_t{0};
constexpr size_t kShortWord = 48;  // up to this length, scanning all pairs beats a heap

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
}
size_t mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15ull;
  return size_t(x ^ x >> 29);
}
uint64_t hash_bytes(std::string_view word) {
  uint64_t h = word.size();
  size_t i = 0;
  for (; i + 8 <= word.size(); i += 8) {
    uint64_t x;
    std::memcpy(&x, word.data() + i, 8);
    h = mix(h ^ x);
  }
  uint64_t x = 0;
  if (i < word.size()) std::memcpy(&x, word.data() + i, word.size() - i);
  return mix(mix(h ^ x));
}

}  // namespace

BpeModel::BpeModel(Parts parts)
    : byte_level_(parts.byte_level),
      fuse_unknown_(parts.fuse_unknown),
      byte_ids_(parts.byte_ids),
      byte_fallbacks_(std::move(parts.byte_fallbacks)),
      unknown_(parts.unknown),
      unknown_id_(parts.unknown_id) {
  const auto& merges = parts.merges;
  MT_CHECK(merges.size() < kNoRank, "{} merges", merges.size());
  size_t size = 16;
  while (size < 2 * merges.size()) size *= 2;
  slots_.resize(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    size_t i = mix(pair) & (size - 1);
    while (slots_[i].pair != kNoPair && slots_[i].pair != pair) i = (i + 1) & (size - 1);
    slots_[i] = {pair, uint32_t(rank), merges[rank].merged};
  }
  for (auto& [word, id] : parts.whole_words) {
    longest_whole_ = std::max(longest_whole_, word.size());
    whole_words_.emplace(word, id);
  }
  for (int32_t id : byte_ids_) all_bytes_ &= id >= 0;
  if (byte_level_) return;
  page_of_.resize(0x110000 / 256);
  pages_.emplace_back().fill(-1);
  for (const auto& [c, id] : parts.characters) {
    uint16_t& page = page_of_[c / 256];
    if (page == 0) {
      page = uint16_t(pages_.size());
      pages_.emplace_back().fill(-1);
    }
    pages_[page][c % 256] = id;
  }
  find_joints(parts);
}

int32_t BpeModel::character_id(uint32_t c) const { return pages_[page_of_[c / 256]][c % 256]; }

// A merge joins two tokens where the last initial symbol of one meets the first of the other. An
// initial symbol is the token of a character, or a token that stands for a byte or for unknown
// text, whatever its own characters are.
void BpeModel::find_joints(const Parts& parts) {
  std::vector<uint8_t> stands_for_other(parts.tokens.size());
  for (int32_t id : byte_ids_)
    if (id >= 0) stands_for_other[size_t(id)] = 1;
  if (unknown_id_) stands_for_other[size_t(*unknown_id_)] = 1;
  const auto ends = [&](int32_t id, bool last, int32_t found[2]) {
    const std::string& token = parts.tokens[size_t(id)];
    const size_t n = last ? last_character(token) : token.empty() ? 0 : utf8_length(token, 0);
    int count = 0;
    const int32_t symbol =
        n == 0 ? -1 : character_id(decode_utf8(token, last ? token.size() - n : 0, n));
    if (symbol >= 0) found[count++] = symbol;
    if (stands_for_other[size_t(id)]) found[count++] = id;
    return count;
  };
  std::vector<uint64_t> pairs;
  for (const Merge& merge : parts.merges) {
    int32_t left[2], right[2];
    const int lefts = ends(merge.left, true, left), rights = ends(merge.right, false, right);
    for (int i = 0; i < lefts; ++i)
      for (int j = 0; j < rights; ++j) pairs.push_back(pair_key(left[i], right[j]));
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  size_t size = 16;
  while (size < 4 * pairs.size()) size *= 2;
  joints_.assign(size, kNoPair);
  for (uint64_t pair : pairs) {
    size_t i = mix(pair) & (size - 1);
    while (joints_[i] != kNoPair) i = (i + 1) & (size - 1);
    joints_[i] = pair;
  }
}

bool BpeModel::may_join(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t i = mix(pair) & (joints_.size() - 1);; i = (i + 1) & (joints_.size() - 1)) {
    if (joints_[i] == pair) return true;
    if (joints_[i] == kNoPair) return false;
  }
}

BpeModel::Scratch::Scratch() : cache(kEntries) {}

const BpeModel::Slot* BpeModel::lookup(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t i = mix(pair) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair) return &slots_[i];
    if (slots_[i].pair == kNoPair) return nullptr;
  }
}

template <class F>
void BpeModel::add_unknown(bool& pending, F&& append) const {
  if (unknown_.empty()) return;
  if (!unknown_id_)
    throw UserError(
        fmt::format("the vocabulary lacks a character of the text, and also \"{}\", the token "
                    "for unknown text",
                    unknown_),
        "remove such characters from the text");
  if (pending && !fuse_unknown_) append(*unknown_id_, true);
  pending = true;
}

// An unknown symbol is appended only when the next known one follows, as in the tokenizers library.
// It therefore comes after the bytes of characters that fall back to bytes in between.
template <class F>
void BpeModel::for_each_symbol(std::string_view word, F&& append, size_t& at) const {
  bool pending = false;
  const auto known = [&](int32_t id) {
    if (pending) append(*unknown_id_, true);
    pending = false;
    append(id, false);
  };
  for (at = 0; at < word.size();) {
    if (byte_level_) {
      const uint8_t byte = uint8_t(word[at]);
      if (byte_ids_[byte] >= 0)
        known(byte_ids_[byte]);
      else if (!byte_fallbacks_[byte].empty())
        for (int32_t id : byte_fallbacks_[byte]) append(id, true);
      else
        add_unknown(pending, append);
      ++at;
      continue;
    }
    const size_t n = utf8_length(word, at);
    const int32_t id = n == 0 ? -1 : character_id(decode_utf8(word, at, n));
    const std::string_view bytes = word.substr(at, std::max<size_t>(n, 1));
    if (id >= 0)
      known(id);
    else if (std::ranges::all_of(bytes, [&](char b) { return byte_ids_[uint8_t(b)] >= 0; }))
      for (char b : bytes) append(byte_ids_[uint8_t(b)], true);
    else
      add_unknown(pending, append);
    at += bytes.size();
  }
  if (pending) append(*unknown_id_, true);
}

bool BpeModel::find_whole(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() > longest_whole_) return false;
  const auto found = whole_words_.find(word);
  if (found == whole_words_.end()) return false;
  out.push_back(found->second);
  return true;
}

// Appends the ids of `word` from the cache; if it lacks them, calls encode() to append them.
template <class F>
void BpeModel::encode_cached(std::string_view word, Scratch& s, std::vector<int32_t>& out,
                             F&& encode) const {
  Scratch::Entry* entry = nullptr;
  if (word.size() <= sizeof entry->word) {
    entry = &s.cache[hash_bytes(word) & (Scratch::kEntries - 1)];
    if (entry->bytes == word.size() && std::memcmp(entry->word, word.data(), word.size()) == 0) {
      out.insert(out.end(), entry->id, entry->id + entry->ids);
      return;
    }
  }
  const size_t before = out.size();
  encode();
  const size_t count = out.size() - before;
  if (!entry || count > std::size(entry->id)) return;
  entry->bytes = uint8_t(word.size());
  entry->ids = uint8_t(count);
  std::memcpy(entry->word, word.data(), word.size());
  std::copy(out.begin() + int64_t(before), out.end(), entry->id);
}

void BpeModel::encode(std::string_view word, Scratch& s, std::vector<int32_t>& out) const {
  MT_CHECK(word.size() < size_t(std::numeric_limits<int32_t>::max()), "a word of {} bytes",
           word.size());
  if (word.empty()) return;
  if (!byte_level_) {
    if (!find_whole(word, out)) encode_characters(word, s, out);
    return;
  }
  if (word.size() == 1 && byte_ids_[uint8_t(word[0])] >= 0) {
    out.push_back(byte_ids_[uint8_t(word[0])]);
    return;
  }
  encode_cached(word, s, out, [&] {
    if (find_whole(word, out)) return;
    s.symbols.clear();
    if (all_bytes_) {
      for (char c : word) s.symbols.push_back(byte_ids_[uint8_t(c)]);
    } else {
      size_t at = 0;
      for_each_symbol(
          word, [&](int32_t id, bool) { s.symbols.push_back(id); }, at);
    }
    merge(s, out);
  });
}

// A word may be a full document. No merge joins tokens across a pair of symbols that is not a
// joint. Both sides of such a pair are therefore merged separately. This gives the same ids: the
// order of merges matters only among merges that touch.
void BpeModel::encode_characters(std::string_view word, Scratch& s,
                                 std::vector<int32_t>& out) const {
  size_t at = 0, begin = 0;
  // The bytes from `begin` determine the symbols only if each character is one symbol.
  bool plain = true;
  s.symbols.clear();
  const auto finish_piece = [&] {
    if (s.symbols.size() == 1)
      out.push_back(s.symbols[0]);
    else if (plain)
      encode_cached(word.substr(begin, at - begin), s, out, [&] { merge(s, out); });
    else
      merge(s, out);
    s.symbols.clear();
  };
  for_each_symbol(
      word,
      [&](int32_t id, bool falls_back) {
        if (!s.symbols.empty() && !may_join(s.symbols.back(), id)) {
          finish_piece();
          begin = at;
          plain = true;
        }
        if (falls_back) plain = false;
        s.symbols.push_back(id);
      },
      at);
  if (!s.symbols.empty()) finish_piece();
}

void BpeModel::merge(Scratch& s, std::vector<int32_t>& out) const {
  if (s.symbols.empty()) return;  // unknown text may have no token
  if (s.symbols.size() <= kShortWord)
    merge_short(s);
  else
    merge_long(s);
  out.insert(out.end(), s.symbols.begin(), s.symbols.end());
}

void BpeModel::merge_short(Scratch& s) const {
  auto& symbols = s.symbols;
  auto& ranks = s.ranks;  // ranks[i] is the rank of the pair that begins at i
  const auto rank_at = [&](size_t i) {
    if (i + 1 >= symbols.size()) return kNoRank;
    const Slot* slot = lookup(symbols[i], symbols[i + 1]);
    return slot ? slot->rank : kNoRank;
  };
  ranks.resize(symbols.size());
  for (size_t i = 0; i < symbols.size(); ++i) ranks[i] = rank_at(i);
  while (true) {
    const size_t at = size_t(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
    if (ranks[at] == kNoRank) break;
    symbols[at] = lookup(symbols[at], symbols[at + 1])->merged;
    symbols.erase(symbols.begin() + int64_t(at) + 1);
    ranks.erase(ranks.begin() + int64_t(at) + 1);
    ranks[at] = rank_at(at);
    if (at > 0) ranks[at - 1] = rank_at(at - 1);
  }
}

// Keeps the symbols in a doubly linked list (a merged one becomes -1) and the pairs in a heap. A
// pair whose symbols have changed since it was pushed is skipped.
void BpeModel::merge_long(Scratch& s) const {
  auto& symbols = s.symbols;
  const int32_t n = int32_t(symbols.size());
  s.next.resize(symbols.size());
  s.previous.resize(symbols.size());
  for (int32_t i = 0; i < n; ++i) {
    s.next[i] = i + 1;
    s.previous[i] = i - 1;
  }
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  s.heap.clear();
  const auto candidate = [&](int32_t at) {
    const Slot* slot = lookup(symbols[at], symbols[s.next[at]]);
    if (slot) s.heap.push_back({slot->rank, at, symbols[at], symbols[s.next[at]]});
    return slot != nullptr;
  };
  for (int32_t i = 0; i + 1 < n; ++i) candidate(i);
  std::make_heap(s.heap.begin(), s.heap.end(), later);
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), later);
    const auto top = s.heap.back();
    s.heap.pop_back();
    const int32_t right = s.next[top.at];
    if (symbols[top.at] != top.left || right >= n || symbols[right] != top.right) continue;
    symbols[top.at] = lookup(top.left, top.right)->merged;
    symbols[right] = -1;
    s.next[top.at] = s.next[right];
    if (s.next[right] < n) s.previous[s.next[right]] = top.at;
    if (s.next[top.at] < n && candidate(top.at))
      std::push_heap(s.heap.begin(), s.heap.end(), later);
    if (s.previous[top.at] >= 0 && candidate(s.previous[top.at]))
      std::push_heap(s.heap.begin(), s.heap.end(), later);
  }
  std::erase(symbols, -1);
}

}  // namespace mtrain::data
