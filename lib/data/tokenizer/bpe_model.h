// Byte pair encoding of one word: of all neighbouring tokens that can merge, those of the lowest
// rank merge first; of equal ranks, the leftmost. Sennrich et al., "Neural machine translation of
// rare words with subword units", ACL 2016.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
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

  struct Parts {
    std::vector<Merge> merges;  // by rank; if a pair is listed twice, the later merge counts
    // A word of this vocabulary (bytes -> id) is one token, whatever the merges are.
    std::unordered_map<std::string, int32_t> whole_words;

    // A word begins as one symbol per byte, or per character.
    bool byte_level = true;
    // The token of each byte, or -1. Without byte_level: the tokens for the bytes of a character
    // that `characters` lacks. They are used only if all bytes of the character have one.
    std::array<int32_t, 256> byte_ids{};
    std::array<std::vector<int32_t>, 256> byte_fallbacks;  // of the bytes that byte_ids lacks
    std::unordered_map<uint32_t, int32_t> characters;      // code point -> token
    std::vector<std::string> tokens;  // by id, as in the vocabulary; only for `characters`

    // The name and the id of the token for all other text. If it has a name but no id, such text is
    // a UserError. If the name is empty, such text is left out.
    std::string unknown;
    std::optional<int32_t> unknown_id;
    bool fuse_unknown = false;  // neighbouring unknown symbols become one
  };
  explicit BpeModel(Parts parts);

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
  bool may_join(int32_t left, int32_t right) const;
  int32_t character_id(uint32_t c) const;
  void find_joints(const Parts& parts);
  // Calls append(id, falls_back) for each initial symbol of `word`.
  template <class F>
  void for_each_symbol(std::string_view word, F&& append, size_t& at) const;
  template <class F>
  void add_unknown(bool& pending, F&& append) const;
  bool find_whole(std::string_view word, std::vector<int32_t>& out) const;
  template <class F>
  void encode_cached(std::string_view word, Scratch& scratch, std::vector<int32_t>& out,
                     F&& encode) const;
  void encode_characters(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge(Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::vector<Slot> slots_;  // open addressing; their number is a power of two
  // Pairs of initial symbols between which some merge joins two tokens; also open addressing.
  std::vector<uint64_t> joints_;
  bool byte_level_, all_bytes_ = true, fuse_unknown_;
  std::array<int32_t, 256> byte_ids_;
  std::array<std::vector<int32_t>, 256> byte_fallbacks_;
  std::vector<uint16_t> page_of_;                // by code point / 256; 0 is the empty page
  std::vector<std::array<int32_t, 256>> pages_;  // the tokens of 256 characters, or -1
  std::string unknown_;
  std::optional<int32_t> unknown_id_;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> whole_words_;
  size_t longest_whole_ = 0;
};

}  // namespace mtrain::data
