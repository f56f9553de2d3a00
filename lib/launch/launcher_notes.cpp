#include "launch/launcher_notes.h"

#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "store/store_protocol.h"

namespace mtrain::launch {

namespace {

using nlohmann::json;

constexpr size_t kMaxNoteText = 16 << 10;  // of each text
constexpr size_t kMaxNoteList = 1 << 17;
constexpr int kMaxNumber = 1 << 24;  // of nodes and ranks

// Bytes that are not UTF-8, such as those of a path, are replaced.
std::string json_text(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string bounded_text(std::string_view text, size_t most = kMaxNoteText) {
  return std::string(text.substr(0, most));
}

[[noreturn]] void refuse_note(const char* what) { throw UserError(what); }

const json& member_of(const json& j, const char* key) {
  if (!j.is_object() || !j.contains(key)) refuse_note(key);
  return j[key];
}

std::string text_at(const json& j, const char* key) {
  const json& value = member_of(j, key);
  if (!value.is_string() || value.get_ref<const std::string&>().size() > 4 * kMaxNoteText)
    refuse_note(key);
  return value.get<std::string>();
}

int64_t number_at(const json& j, const char* key, int64_t least, int64_t most) {
  const json& value = member_of(j, key);
  if (!value.is_number_integer()) refuse_note(key);
  const auto n = value.get<int64_t>();
  if (n < least || n > most) refuse_note(key);
  return n;
}

double seconds_at(const json& j, const char* key) {
  const json& value = member_of(j, key);
  constexpr double kMostSeconds = 86400;
  if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMostSeconds))
    refuse_note(key);
  return value.get<double>();
}

bool flag_at(const json& j, const char* key) {
  const json& value = member_of(j, key);
  if (!value.is_boolean()) refuse_note(key);
  return value.get<bool>();
}

const json& list_at(const json& j, const char* key) {
  const json& value = member_of(j, key);
  if (!value.is_array() || value.size() > kMaxNoteList) refuse_note(key);
  return value;
}

json json_of(const std::optional<RoundCause>& cause, size_t most = kMaxNoteText) {
  if (!cause) return nullptr;
  return {{"weight", cause->weight},
          {"exit_code", cause->exit_code},
          {"interrupted", cause->interrupted},
          {"step", cause->step},
          {"rank", cause->rank.value_or(-1)},
          {"host", bounded_text(cause->host, most)},
          {"message", bounded_text(cause->message, most)},
          {"text", bounded_text(cause->text, most)}};
}

constexpr int64_t kAnyStep = int64_t(1) << 60;

std::optional<RoundCause> cause_at(const json& j) {
  const json& c = member_of(j, "cause");
  if (c.is_null()) return std::nullopt;
  RoundCause cause{.weight = int(number_at(c, "weight", 0, 3)),
                   .exit_code = int(number_at(c, "exit_code", 0, 255)),
                   .interrupted = flag_at(c, "interrupted"),
                   .step = number_at(c, "step", 0, kAnyStep),
                   .rank = int(number_at(c, "rank", -1, kMaxNumber)),
                   .host = text_at(c, "host"),
                   .message = text_at(c, "message"),
                   .text = text_at(c, "text")};
  if (*cause.rank < 0) cause.rank.reset();
  return cause;
}

constexpr std::array kNewsWords{"run", "end", "kill", "signal", "cause", "over", "refuse"};
constexpr std::array kStateWords{"waiting", "running", "failed", "ended"};

template <class Kind, size_t N>
Kind kind_at(const json& j, const char* key, const std::array<const char*, N>& words) {
  const std::string word = text_at(j, key);
  for (size_t i = 0; i < N; ++i)
    if (word == words[i]) return Kind(i);
  refuse_note(key);
}

std::vector<RoundMember> members_at(const json& j) {
  std::vector<RoundMember> members;
  for (const json& m : list_at(j, "members"))
    members.push_back({.node = int(number_at(m, "node", 0, kMaxNumber)),
                       .id = text_at(m, "id"),
                       .first_rank = int(number_at(m, "first_rank", 0, kMaxNumber)),
                       .ranks = int(number_at(m, "ranks", 0, kMaxNumber))});
  return members;
}

std::vector<std::string> texts_at(const json& j, const char* key) {
  std::vector<std::string> texts;
  for (const json& text : list_at(j, key)) {
    if (!text.is_string()) refuse_note(key);
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

json json_of(const std::vector<RoundMember>& members) {
  json list = json::array();
  for (const RoundMember& m : members)
    list.push_back(
        {{"node", m.node}, {"id", m.id}, {"first_rank", m.first_rank}, {"ranks", m.ranks}});
  return list;
}

constexpr int kLastPort = 65535;

LeaderRecord leader_of(const json& j) {
  return {.id = text_at(j, "id"),
          .host = text_at(j, "host"),
          .node = int(number_at(j, "node", 0, kMaxNumber)),
          .address = text_at(j, "address"),
          .port = uint16_t(number_at(j, "port", 0, kLastPort)),
          .job_token = text_at(j, "job_token")};
}

RoundFacts facts_of(const json& j) {
  RoundFacts facts{.leader = text_at(j, "leader"),
                   .leader_host = text_at(j, "leader_host"),
                   .leader_node = int(number_at(j, "leader_node", 0, kMaxNumber)),
                   .leader_address = text_at(j, "leader_address"),
                   .leader_port = uint16_t(number_at(j, "leader_port", 0, kLastPort)),
                   .job_token = text_at(j, "job_token"),
                   .job = text_at(j, "job"),
                   .round = number_at(j, "round", 0, kMaxNumber),
                   .members = members_at(j),
                   .counted_from = number_at(j, "counted_from", -1, kAnyStep),
                   .began_with = {},
                   .restarts = int(number_at(j, "restarts", 0, kMaxNumber)),
                   .failures = int(number_at(j, "failures", 0, kMaxNumber)),
                   .proven = texts_at(j, "proven"),
                   .over = flag_at(j, "over"),
                   .code = int(number_at(j, "code", 0, 255))};
  if (!member_of(j, "began_with").is_null())
    facts.began_with = number_at(j, "began_with", -1, kAnyStep);
  return facts;
}

LauncherNews news_of(const json& j) {
  return {.kind = kind_at<LauncherNews::Kind>(j, "kind", kNewsWords),
          .round = number_at(j, "round", -1, kMaxNumber),
          .members = members_at(j),
          .world = int(number_at(j, "world", 0, kMaxNumber)),
          .restarts_left = int(number_at(j, "restarts_left", 0, kMaxNumber)),
          .signal = int(number_at(j, "signal", 0, 64)),
          .code = int(number_at(j, "code", 0, 255)),
          .restarts = flag_at(j, "restarts"),
          .delay_s = seconds_at(j, "delay_s"),
          .id = text_at(j, "id"),
          .job = text_at(j, "job"),
          .counted_from = number_at(j, "counted_from", -1, kAnyStep),
          .cause = cause_at(j),
          .lines = texts_at(j, "lines")};
}

LauncherNote note_of(const json& j) {
  LauncherNote note{.id = text_at(j, "id"),
                    .host = text_at(j, "host"),
                    .node = int(number_at(j, "node", 0, kMaxNumber)),
                    .ranks = int(number_at(j, "ranks", 1, kMaxNumber)),
                    .beat = number_at(j, "beat", 0, kAnyStep),
                    .state = kind_at<LauncherNote::State>(j, "state", kStateWords),
                    .round = number_at(j, "round", -1, kMaxNumber),
                    .well = flag_at(j, "well"),
                    .signal = int(number_at(j, "signal", 0, 64)),
                    .second = flag_at(j, "second"),
                    .cause = cause_at(j)};
  const auto straggler = number_at(j, "straggler", -1, kMaxNumber);
  if (straggler >= 0) note.straggler = int(straggler);
  return note;
}

}  // namespace

bool is_of_other(const LauncherNews& news, const std::string& id) {
  using Kind = LauncherNews::Kind;
  const bool of_one = news.kind == Kind::refuse || (news.kind == Kind::run && !news.id.empty());
  return of_one && news.id != id;
}

std::string note_key(const LauncherNote& note) {
  return fmt::format("{}{}/{}", store::kNotes, note.node, note.id);
}

std::string news_key(int64_t number) { return fmt::format("{}{}", store::kNews, number); }

std::string text_of(const LauncherNote& n) {
  // JSON may need several bytes for a character.
  for (size_t most = kMaxNoteText;; most /= 2) {
    std::string text = json_text({{"id", n.id},
                                  {"host", bounded_text(n.host, most)},
                                  {"node", n.node},
                                  {"ranks", n.ranks},
                                  {"beat", n.beat},
                                  {"state", kStateWords[size_t(n.state)]},
                                  {"round", n.round},
                                  {"well", n.well},
                                  {"signal", n.signal},
                                  {"second", n.second},
                                  {"straggler", n.straggler.value_or(-1)},
                                  {"cause", json_of(n.cause, most)}});
    if (text.size() <= store::kMaxNoteBytes || most == 0) return text;
  }
}

std::string text_of(const LauncherNews& n) {
  return json_text({{"kind", kNewsWords[size_t(n.kind)]},
                    {"round", n.round},
                    {"members", json_of(n.members)},
                    {"world", n.world},
                    {"restarts_left", n.restarts_left},
                    {"signal", n.signal},
                    {"code", n.code},
                    {"restarts", n.restarts},
                    {"delay_s", n.delay_s},
                    {"id", n.id},
                    {"job", n.job},
                    {"counted_from", n.counted_from},
                    {"cause", json_of(n.cause)},
                    {"lines", n.lines}});
}

std::string text_of(const LeaderRecord& r) {
  return json_text({{"id", r.id},
                    {"host", bounded_text(r.host)},
                    {"node", r.node},
                    {"address", r.address},
                    {"port", r.port},
                    {"job_token", r.job_token}});
}

std::string text_of(const RoundFacts& f) {
  return json_text({{"leader", f.leader},
                    {"leader_host", bounded_text(f.leader_host)},
                    {"leader_node", f.leader_node},
                    {"leader_address", f.leader_address},
                    {"leader_port", f.leader_port},
                    {"job_token", f.job_token},
                    {"job", f.job},
                    {"round", f.round},
                    {"members", json_of(f.members)},
                    {"counted_from", f.counted_from},
                    {"began_with", f.began_with ? json(*f.began_with) : json(nullptr)},
                    {"restarts", f.restarts},
                    {"failures", f.failures},
                    {"proven", f.proven},
                    {"over", f.over},
                    {"code", f.code}});
}

std::optional<LauncherNote> parse_note(std::string_view text) {
  try {
    return note_of(parse_json(text, "note"));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<LauncherNews> parse_news(std::string_view text) {
  try {
    return news_of(parse_json(text, "news"));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<LeaderRecord> parse_leader(std::string_view text) {
  try {
    return leader_of(parse_json(text, "leader"));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<RoundFacts> parse_facts(std::string_view text) {
  try {
    return facts_of(parse_json(text, "rounds"));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace mtrain::launch
