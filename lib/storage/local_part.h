// Parts of checkpoints in folders of single hosts. A part is what one rank saves of one step, in a
// folder of its own, `step-00000037.<start>.rank-00003`: its files with their checksums, and the
// file `part`, which describes them. A part is complete or absent. Together the parts of all ranks
// are a checkpoint.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::storage {

struct PartName {
  int64_t step = 0;
  std::string start;  // identifies the start of the job that wrote it: 16 hexadecimal digits
  int rank = 0;
  std::string text() const;
  bool operator==(const PartName&) const = default;
};
std::optional<PartName> parse_part_name(std::string_view text);

struct PartDescription {
  PartName name;
  int ranks = 1;                            // of the job
  std::string host;                         // of the rank; empty: an earlier version wrote it
  std::string shards;                       // checkpoint::shards_text() of the rank's files
  std::map<std::string, int64_t> sizes;     // of all files
  std::map<std::string, std::string> sums;  // hashes of files without a .sums file: state.json

  std::string text() const;
  // Throws RunError, which names `origin`, if the text was changed.
  static PartDescription parse(std::string_view text, const std::string& origin);
};
inline constexpr const char* kPartFile = "part";

struct LocalPart {
  PartDescription description;
  std::filesystem::path folder;
};

// Writes a part into a folder that has no name yet, and removes it unless commit() is called.
class PartWriter {
 public:
  // Makes the folder in `root`. Throws RunError.
  PartWriter(const std::filesystem::path& root, PartName name);
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  const std::filesystem::path& folder() const { return temporary_; }
  // Describes the files in the folder, and gives it its name, which it returns. Throws RunError.
  std::filesystem::path commit(int ranks, const std::string& shards);

 private:
  PartName name_;
  std::filesystem::path temporary_, final_;
  bool committed_ = false;
};

// Returns the description of the part in `folder`. Throws RunError or UserError, which name the
// file.
PartDescription read_part_description(const std::filesystem::path& folder);
// Returns the part in `folder`. Throws errors as well if a file is missing, has another size, or is
// a small one with other content.
LocalPart read_part(const std::filesystem::path& folder);

// Returns the complete parts in `root`: those whose files have their sizes, and the small ones
// their content. Skips everything else.
std::vector<LocalPart> list_parts(const std::filesystem::path& root);

// Removes the folder of a part, which loses its name first: a process that is killed meanwhile
// leaves no part that lacks some of its files.
void remove_part(const std::filesystem::path& part);

// Reads all files of a part. Returns false if a byte differs from what was saved.
bool is_sound_part(const LocalPart& part);

// The folder of a run's parts on this host, `<dir>/<host>/<run>`, with rights for its owner alone.
class LocalFolder {
 public:
  // Makes the folder, but not the parents of `dir`. It counts as used while the object lives.
  // Throws RunError if `dir` is a link, belongs to another user, or cannot be written.
  LocalFolder(const std::filesystem::path& dir, const std::string& host, const std::string& run);
  ~LocalFolder();
  LocalFolder(const LocalFolder&) = delete;
  LocalFolder& operator=(const LocalFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Returns the bytes that its files take. A file with several names counts once, and holes do not.
  int64_t bytes() const;

  // Removes what killed saves of this run have left.
  void remove_temporaries() const;
  // Removes the folders of other runs that no process uses, and that nobody has changed for
  // `stale`. Returns their names.
  std::vector<std::string> remove_leftovers(std::chrono::nanoseconds stale) const;
  void remove_all();  // the folder itself

 private:
  const std::filesystem::path path_;
  int lock_ = -1;
};

// Whether the folder's file system is host memory (tmpfs), as /dev/shm.
bool is_in_memory(const std::filesystem::path& folder);

}  // namespace mtrain::storage
