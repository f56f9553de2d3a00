// Identifies data by their content, not by their path: by size and hashes (XXH3-128).
//
// <prefix>.hash has a first line "mtrain content 1" and a line for each file of the set:
//   <bin, idx or mask> <bytes> <hash of the sample> <hash of all bytes>
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace mtrain::data {

struct FileContent {
  std::string part;  // which file of its set: bin, idx, mask, tokenizer.json, ...
  int64_t bytes = 0;
  std::string sample;     // hash of 4,096 fixed blocks of 4 KiB; of a smaller file, of all bytes
  std::string full_hash;  // hash of all bytes; empty while it is not known
  std::filesystem::path path = {};  // where it is, if that is known
};

// The files of a data set, or of a tokenizer.
using Content = std::vector<FileContent>;

// Reads the sample of a file, at most 16 MiB, or all of it. Throws UserError, RunError.
enum class Reads { sample, all };
FileContent read_content(const std::string& part, const std::filesystem::path& path, Reads reads);

// Returns the content of the files of a token set. Reads all of the .idx, and samples of the
// others. Hashes of all bytes come from <prefix>.hash if it fits the files and is not older than
// the file, else from the user's cache folder. Warns about a .hash of other files.
Content content_of_tokens(const std::filesystem::path& prefix);
// Writes <prefix>.hash. `full_hashes` has the hashes of all bytes, by part.
void write_content(const std::filesystem::path& prefix,
                   const std::vector<std::pair<std::string, std::string>>& full_hashes);

// Reads a full file and returns its hash. Also keeps the hash in the user's cache folder, under the
// file's device, inode, size and times. Calls `keep_going` after every few MiB; returns "" if that
// returns false, or if the file changes during the call.
std::string hash_file(const std::filesystem::path& path, const std::function<bool()>& keep_going);

// Returns the hash that hash_file() has kept for this file; "" if there is none, or if it was kept
// so shortly after the file's last change that a later change may have had the same time.
std::string settled_hash(const std::filesystem::path& path);

// Returns settled_hash(), or else hash_file(). Of processes of a host that ask at once one reads
// the file, and the others wait for its hash; they call `keep_going`, too.
std::string known_or_read_hash(const std::filesystem::path& path,
                               const std::function<bool()>& keep_going);

// Prints a line for each file, as in <prefix>.hash. An unknown hash is "-".
std::string print_content(const Content& content);
// Reads such lines. Returns an empty list if they are malformed.
Content parse_content(const std::string& lines);

// Describes the files in which the contents differ, as far as both are known; "" if there are none.
std::string content_difference(const Content& saved, const Content& now);
// Returns one hash of all samples.
std::string sample_hash(const Content& content);

}  // namespace mtrain::data
