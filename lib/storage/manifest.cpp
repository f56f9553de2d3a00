#include "storage/manifest.h"

#include <system_error>
#include <vector>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "storage/file_sums.h"
#include "storage/manifest_json.h"
#include "storage/new_folder.h"

namespace mtrain::storage {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char *kSums = "sums", *kSumsHashes = "sums_hashes", *kChecksum = "checksum";
constexpr const char* kSumsEnd = ".sums";
constexpr int64_t kMaxSteps = 1'000'000'000'000;
// The checksum's digits while it is computed.
const std::string kNoDigits(ContentHash::kDigits, '0');

std::string checksum_key() { return fmt::format("\"{}\": \"", kChecksum); }

[[noreturn]] void fail_save(const char* verb, const fs::path& path, const std::error_code& error) {
  throw RunError(fmt::format("cannot {} {}: {}", verb, path.string(), error.message()),
                 "check checkpoint.dir; earlier checkpoints are intact");
}

// Lists the regular files in `folder`, at any depth, by their paths within it. The consolidated
// form is left out: it is made of the checkpoint, which is sound without it.
std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (it.depth() == 0 && is_consolidated(it->path().filename().string()))
      it.disable_recursion_pending();
    if (it->is_regular_file(error))
      found.push_back(it->path().lexically_relative(folder).generic_string());
    if (error && error != std::errc::no_such_file_or_directory) break;
    error.clear();
  }
  if (error) fail_save("list", folder, error);
  return found;
}

bool is_sums(const std::string& name) { return name.ends_with(kSumsEnd); }

// Whether a folder has checksums, even if its damaged manifest no longer lists them.
bool shows_sums(const fs::path& folder, const std::string& text) {
  if (text.find(kChecksum) != std::string::npos || text.find(kSumsHashes) != std::string::npos)
    return true;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (is_sums(it->path().filename().string())) return true;
  return false;
}

bool is_inside(const std::string& name) {
  const fs::path path(name);
  if (name.empty() || path.is_absolute()) return false;
  for (const fs::path& part : path)
    if (part == "..") return false;
  return true;
}

UserError newer_format(const fs::path& path, const json& file) {
  const auto needs = file.find("needs");
  const bool named = needs != file.end() && needs->is_string();
  return UserError(fmt::format("{} has format {}; this mtrain reads formats {} and {}",
                               path.string(), file["format"].dump(), kManifestFormat, kIndexFormat),
                   named ? fmt::format("use mtrain {} or newer", needs->get<std::string>())
                         : "load it with the version of mtrain that wrote it");
}

Manifest parse_manifest_text(const fs::path& path, const std::string& text) {
  const auto fail = [&](const std::string& what) { return damaged_file(path, what); };
  json file;
  try {
    file = parse_json(text, path.filename().string());
  } catch (const UserError& e) {
    throw fail(e.message());
  }
  if (!file.is_object()) throw fail("it is not a JSON object");
  const auto step = file.find("step"), files = file.find("files"), format = file.find("format");
  const int expected = path.filename() == kIndexJson ? kIndexFormat : kManifestFormat;
  if (format != file.end() && format->is_number_unsigned() &&
      format->get<uint64_t>() > uint64_t(expected))
    throw newer_format(path, file);
  if (format == file.end() ? expected != kManifestFormat : *format != expected)
    throw fail("its format is that of another file");
  if (step == file.end() || !step->is_number_unsigned() ||
      step->get<uint64_t>() > uint64_t(kMaxSteps))
    throw fail("it has no step that a training can reach");
  if (files == file.end() || !files->is_object()) throw fail("it lists no files");
  Manifest m;
  m.step = step->get<int64_t>();
  for (const auto& [name, bytes] : files->items()) {
    if (!is_inside(name) || !bytes.is_number_unsigned() ||
        bytes.get<uint64_t>() > uint64_t(INT64_MAX))
      throw fail(fmt::format("`{}` is not a file of the folder with its size", name));
    m.sizes[name] = bytes.get<int64_t>();
  }
  const auto sums = file.find(kSums), hashes = file.find(kSumsHashes);
  if (sums == file.end()) return m;
  if (*sums != true || hashes == file.end() || !hashes->is_object())
    throw fail("it lists no checksums");
  m.has_sums = true;
  for (const auto& [name, hash] : hashes->items())
    if (hash.is_string()) m.sums[name] = hash.get<std::string>();
  for (const auto& [name, bytes] : m.sizes)
    if (name != kRecipeCopy && !m.sums.contains(name))
      throw fail(fmt::format("it has no checksum of `{}`", name));
  return m;
}

// Whether the folder has files that only format 2 has.
bool has_shards(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with("weights-") &&
        it->path().filename().string().find(".safetensors") != std::string::npos)
      return true;
  return false;
}

}  // namespace

void check_own_checksum(const fs::path& file, const std::string& text) {
  const std::string key = checksum_key();
  const size_t at = text.find(key);
  if (at == std::string::npos || text.size() < at + key.size() + kNoDigits.size())
    throw damaged_file(file, "its checksum is missing");
  std::string cleared = text;
  cleared.replace(at + key.size(), kNoDigits.size(), kNoDigits);
  if (text.substr(at + key.size(), kNoDigits.size()) != content_hash(cleared))
    throw damaged_file(file, "it differs from what was saved, according to its own checksum");
}

json describe_files(const fs::path& folder, int64_t step,
                    const std::map<std::string, std::string>& known) {
  json sizes = json::object(), hashes = json::object();
  std::error_code error;
  for (const std::string& name : files_in(folder)) {
    if (name == kManifest || name == kIndexJson || is_sums(name)) continue;
    const fs::path file = folder / name;
    sizes[name] = fs::file_size(file, error);
    if (error) fail_save("look at", file, error);
    if (name == kRecipeCopy) continue;
    if (const auto at = known.find(name); at != known.end()) {
      hashes[name] = at->second;
      continue;
    }
    const fs::path sums = sums_path(file);
    if (!fs::exists(sums, error)) write_file_atomic(sums, make_sums(file), Durable::later);
    hashes[name] = content_hash(read_file(sums));
  }
  return {{"step", step}, {"files", sizes}, {kSums, true}, {kSumsHashes, hashes}};
}

void write_with_checksum(const fs::path& path, json manifest) {
  manifest[kChecksum] = kNoDigits;
  std::string text = manifest.dump(2) + "\n";
  if (int64_t(text.size()) > kLargestText)
    throw RunError(fmt::format("{} would have {} bytes, and at most {} can be read again",
                               path.string(), text.size(), kLargestText),
                   "divide the parameters among fewer ranks (distributed.dp_replicate_size)");
  const std::string key = checksum_key();
  text.replace(text.find(key) + key.size(), kNoDigits.size(), content_hash(text));
  write_file_atomic(path, text, Durable::later);
}

bool is_consolidated(std::string_view name) {
  if (!name.starts_with(kConsolidated)) return false;
  const auto rest = name.substr(std::string_view(kConsolidated).size());
  return rest.empty() || rest.starts_with(NewFolder::kTemporary);
}

fs::path manifest_path(const fs::path& folder) {
  std::error_code error;
  if (fs::is_regular_file(folder / kIndexJson, error)) return folder / kIndexJson;
  const bool of_format_1 = fs::is_regular_file(folder / kManifest, error) || !has_shards(folder);
  return folder / (of_format_1 ? kManifest : kIndexJson);
}

bool has_own_manifest(const fs::path& folder) {
  const fs::path path = manifest_path(folder);
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  std::string text;
  try {
    text = read_file(path);
    const json file = parse_json(text, path.filename().string());
    if (!file.is_object()) return false;
    const auto files = file.find("files");
    const bool lists = files != file.end() && files->is_object() && file.contains("step");
    return lists || file.contains(kSumsHashes);
  } catch (const UserError&) {
    return text.find(kSumsHashes) != std::string::npos;
  }
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = manifest_path(folder);
  std::error_code error;
  if (!fs::exists(path, error) && !error) throw missing_file(path);
  const std::string text = read_saved(path);
  const bool has_sums = shows_sums(folder, text);
  if (has_sums) check_own_checksum(path, text);
  Manifest manifest = parse_manifest_text(path, text);
  if (has_sums != manifest.has_sums) throw damaged_file(path, "it lists no checksums");
  return manifest;
}

void write_manifest(const fs::path& folder, int64_t step) {
  json manifest = describe_files(folder, step);
  manifest["format"] = kManifestFormat;
  write_with_checksum(folder / kManifest, std::move(manifest));
}

void require_no_link(const fs::path& folder, const std::string& name) {
  fs::path path = folder;
  std::error_code error;
  for (const fs::path& part : fs::path(name)) {
    path /= part;
    if (fs::is_symlink(path, error))
      throw RunError(fmt::format("{} is a link, and a checkpoint has files alone", path.string()),
                     "copy the file into the checkpoint, under the link's name");
  }
}

std::string checked_sums(const fs::path& folder, const Manifest& manifest,
                         const std::string& name) {
  const fs::path path = sums_path(folder / name);
  std::error_code error;
  if (!fs::exists(path, error) && !error) throw missing_file(path);
  std::string text = read_saved(path);
  const auto hash = manifest.sums.find(name);
  if (hash == manifest.sums.end() || content_hash(text) != hash->second)
    throw damaged_file(path, fmt::format("it differs from what was saved, according to {}",
                                         manifest_path(folder).filename().string()));
  return text;
}

}  // namespace mtrain::storage
