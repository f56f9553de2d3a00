#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace mtrain::data {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
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

BpeModel::BpeModel(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_ids,
                   std::unordered_map<std::string, int32_t> whole_words)
    : byte_ids_(byte_ids) {
  MT_CHECK(merges.size() < kNoRank, "{} merges", merges.size());
  size_t size = 16;
  while (size < 2 * merges.size()) size *= 2;
  slots_.resize(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    size_t i = mix(pair) & (size - 1);
    while (slots_[i].pair != ~uint64_t{0} && slots_[i].pair != pair) i = (i + 1) & (size - 1);
    // If a pair is listed twice, the later merge counts.
    slots_[i] = {pair, uint32_t(rank), merges[rank].merged};
  }
  for (auto& [word, id] : whole_words) whole_words_.emplace(word, id);
}

BpeModel::Scratch::Scratch() : cache(kEntries) {}

const BpeModel::Slot* BpeModel::lookup(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t i = mix(pair) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair) return &slots_[i];
    if (slots_[i].pair == ~uint64_t{0}) return nullptr;
  }
}

void BpeModel::encode(std::string_view word, Scratch& s, std::vector<int32_t>& out) const {
  if (word.size() == 1) {
    out.push_back(byte_ids_[uint8_t(word[0])]);
    return;
  }
  if (word.empty()) return;
  Scratch::Entry* entry = nullptr;
  if (word.size() <= sizeof entry->word) {
    entry = &s.cache[hash_bytes(word) & (Scratch::kEntries - 1)];
    if (entry->bytes == word.size() && std::memcmp(entry->word, word.data(), word.size()) == 0) {
      out.insert(out.end(), entry->id, entry->id + entry->ids);
      return;
    }
  }
  const size_t before = out.size();
  merge_word(word, s, out);
  const size_t count = out.size() - before;
  if (!entry || count > std::size(entry->id)) return;
  entry->bytes = uint8_t(word.size());
  entry->ids = uint8_t(count);
  std::memcpy(entry->word, word.data(), word.size());
  std::copy(out.begin() + int64_t(before), out.end(), entry->id);
}

void BpeModel::merge_word(std::string_view word, Scratch& s, std::vector<int32_t>& out) const {
  if (!whole_words_.empty()) {
    const auto found = whole_words_.find(word);
    if (found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  MT_CHECK(word.size() < size_t(std::numeric_limits<int32_t>::max()), "a word of {} bytes",
           word.size());
  s.symbols.resize(word.size());
  for (size_t i = 0; i < word.size(); ++i) s.symbols[i] = byte_ids_[uint8_t(word[i])];
  if (word.size() <= kShortWord)
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
