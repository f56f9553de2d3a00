// Byte pair encoding of one word: of all neighbouring tokens that can merge, those of the lowest
// rank merge first, the leftmost of equals before the others. Sennrich et al., "Neural machine
// translation of rare words with subword units", ACL 2016.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mtrain::data {

class BpeModel {
 public:
  struct Merge {
    int32_t left, right, merged;
  };

  // `merges` is indexed by rank; byte_ids[b] is the token of the single byte b. A word that
  // `whole_words` (bytes -> id) holds is one token, whatever the merges say.
  BpeModel(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_ids,
           std::unordered_map<std::string, int32_t> whole_words);

  // The buffers of one thread, and a cache of fixed size for the ids of recent short words.
  class Scratch {
   public:
    Scratch();

   private:
    friend class BpeModel;
    static constexpr size_t kEntries = size_t(1) << 15;  // entries of 128 bytes: 4 MiB in all
    struct Entry {
      uint8_t bytes = 0, ids = 0;  // the entry is empty if bytes is 0
      char word[30];
      int32_t id[24];
    };
    std::vector<Entry> cache;
    std::vector<int32_t> symbols, next, previous;
    std::vector<uint32_t> ranks;
    struct Candidate {
      uint32_t rank;
      int32_t at, left, right;  // outdated once symbols[at] is not `left` or the next not `right`
    };
    std::vector<Candidate> heap;
  };

  // Appends the ids of `word`, which may be any bytes, to `out`.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = 0;
    int32_t merged = 0;
  };
  const Slot* lookup(int32_t left, int32_t right) const;
  void merge_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::vector<Slot> slots_;  // open addressing; their number is a power of two
  std::array<int32_t, 256> byte_ids_;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> whole_words_;
};

}  // namespace mtrain::data
