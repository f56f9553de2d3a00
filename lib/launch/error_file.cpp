#include "launch/error_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace mtrain::launch {

namespace {

// The names of the kinds in the file.
constexpr std::pair<ErrorKind, const char*> kWords[] = {
    {ErrorKind::user, "user"}, {ErrorKind::run, "run"},     {ErrorKind::comm, "comm"},
    {ErrorKind::bug, "bug"},   {ErrorKind::crash, "crash"}, {ErrorKind::other, "other"}};

const char* word_of(ErrorKind kind) {
  return std::ranges::find(kWords, kind, &std::pair<ErrorKind, const char*>::first)->second;
}

const char* word_of(const std::exception& e) {
  const auto kind = dynamic_cast<const UserError*>(&e)   ? ErrorKind::user
                    : dynamic_cast<const RunError*>(&e)  ? ErrorKind::run
                    : dynamic_cast<const CommError*>(&e) ? ErrorKind::comm
                    : dynamic_cast<const BugError*>(&e)  ? ErrorKind::bug
                                                         : ErrorKind::other;
  return word_of(kind);
}

ErrorKind kind_named(const std::string& word) {
  for (const auto& [kind, name] : kWords)
    if (word == name) return kind;
  return ErrorKind::other;
}

// The data that signal handlers need, since they may neither allocate nor read the environment.
struct HandlerFile {
  std::string path, begin, begin_of_crash;  // the JSON up to the message
  std::string text;                         // a buffer
};
HandlerFile& handler_file() {
  static HandlerFile file;
  return file;
}

// Appends the bytes of a text in JSON. Bytes that are not printable ASCII become question marks.
void append_json(std::string& to, const char* text, const char* end) {
  for (; text != end && to.size() + 2 < to.capacity(); ++text) {
    if (*text == '"' || *text == '\\') to += '\\';
    to += *text >= ' ' && *text < 127 ? *text : '?';
  }
}

constexpr size_t kLongestFrame = 512;  // bytes of a frame in JSON

void write_in_handler(const char* text) {
  HandlerFile& file = handler_file();
  const int fd = ::open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return;
  constexpr const char *kHint = "\n  hint: ", *kFrame = "\n  at ";
  const char* frame = std::strstr(text, kFrame);
  const char* end = frame ? frame : text + std::strlen(text);
  const char* hint = frame ? nullptr : std::strstr(text, kHint);
  file.text += frame ? file.begin_of_crash : file.begin;
  append_json(file.text, text, hint ? hint : end);
  file.text += R"(", "hint": ")";
  if (hint) append_json(file.text, hint + std::strlen(kHint), end);
  file.text += R"(", "launches": [], "frames": [)";
  constexpr size_t kEnd = 16;  // bytes that must stay free
  for (bool first = true; frame && file.text.size() + kLongestFrame + kEnd < file.text.capacity();
       first = false) {
    frame += std::strlen(kFrame);
    const char* const next = std::strstr(frame, kFrame);
    file.text += first ? "\"" : ", \"";
    append_json(file.text, frame,
                std::min(next ? next : frame + std::strlen(frame), frame + kLongestFrame / 2));
    file.text += '"';
    frame = next;
  }
  file.text += "]}";
  if (::write(fd, file.text.data(), file.text.size()) != ssize_t(file.text.size()))
    ::unlink(file.path.c_str());
  ::close(fd);
}

}  // namespace

WriteErrorText error_file_of_handlers() {
  const char* path = std::getenv("MTRAIN_ERROR_FILE");
  if (!path || !*path) return nullptr;
  const char* rank = std::getenv("RANK");
  constexpr size_t kMaxBytes = 32768;
  HandlerFile& file = handler_file();
  file.path = path;
  // The handler writes the time of this call, since it must not format numbers.
  const auto begin = [rank](ErrorKind kind) {
    std::string text = nlohmann::json{{"rank", rank ? std::atoi(rank) : 0},
                                      {"kind", word_of(kind)},
                                      {"time", double(std::time(nullptr))}}
                           .dump();
    text.pop_back();
    return text + R"(, "message": ")";
  };
  file.begin = begin(ErrorKind::run);
  file.begin_of_crash = begin(ErrorKind::crash);
  file.text.clear();
  file.text.reserve(kMaxBytes);
  return write_in_handler;
}

void write_error_file(const std::exception& e, const std::vector<std::string>& launches) {
  const char* path = std::getenv("MTRAIN_ERROR_FILE");
  if (!path || !*path) return;
  try {
    if (std::filesystem::exists(path)) return;
    const auto* ours = dynamic_cast<const Error*>(&e);
    const char* rank = std::getenv("RANK");
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const nlohmann::json j{{"rank", rank ? std::atoi(rank) : 0},
                           {"kind", word_of(e)},
                           {"message", ours ? ours->message() : e.what()},
                           {"hint", ours ? ours->hint() : ""},
                           {"time", now},
                           {"launches", launches}};
    // Bytes that are not UTF-8, such as those of a file name, are replaced: the message must not be
    // lost.
    write_file_atomic(path, j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } catch (...) {
    // The rank is already failing; its own output still has the cause.
  }
}

std::optional<RankError> read_error_file(const std::filesystem::path& path) {
  try {
    const auto j = read_json(path);
    RankError e;
    j.at("rank").get_to(e.rank);
    e.kind = kind_named(j.at("kind").get<std::string>());
    j.at("message").get_to(e.message);
    j.at("hint").get_to(e.hint);
    j.at("time").get_to(e.time);
    j.at("launches").get_to(e.launches);
    if (j.contains("frames")) j.at("frames").get_to(e.frames);
    return e;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace mtrain::launch
