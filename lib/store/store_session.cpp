#include "store/store_session.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"

namespace mtrain::store {

namespace {

std::shared_ptr<const std::string> reply_of(char kind, std::string_view text) {
  std::string reply;
  append_text(reply, std::string(1, kind).append(text));
  return std::make_shared<const std::string>(std::move(reply));
}

constexpr size_t kReplyHead = sizeof(uint32_t) + 1;  // length and kind
constexpr std::string_view kOperations{"ESGARFPLM"};
constexpr const char* kFull = "the rendezvous is full";

std::string_view value_of(const std::string& reply) {
  return std::string_view(reply).substr(kReplyHead);
}

// A value and a collection may have the same key.
std::string waiting_key(char operation, const std::string& key) { return operation + key; }

}  // namespace

bool StoreTable::has_room(const Space& space, size_t bytes) {
  return bytes <= kMaxBytes && space.values.size() + space.collections.size() < kMaxKeys;
}

bool StoreTable::set(Space& space, const std::string& key, std::string_view value) {
  const auto found = space.values.find(key);
  const bool known = found != space.values.end();
  const size_t before = known ? value_of(*found->second).size() + key.size() : 0;
  const size_t after = space.bytes - before + key.size() + value.size();
  if (known ? after > kMaxBytes : !has_room(space, after)) return false;
  space.bytes = after;
  const Reply reply = space.values[key] = reply_of(kAnswer, value);
  wake(space, waiting_key(kGet, key), reply);
  return true;
}

void StoreTable::remove(Space& space, const std::string& key) {
  const auto found = space.values.find(key);
  if (found == space.values.end()) return;
  space.bytes -= key.size() + value_of(*found->second).size();
  space.values.erase(found);
}

std::string StoreTable::set_note(StoreSession& session, const std::string& key,
                                 std::string_view value) {
  const bool is_own = session.note_.empty() || session.note_ == key;
  if (!key.starts_with(kNotes) || !is_own) return "a launcher sets its own note alone";
  if (key.size() > kMaxNoteKeyBytes || value.size() > kMaxNoteBytes)
    return fmt::format("a note of more than {} bytes", kMaxNoteBytes);
  if (!setters_.contains(key) && std::erase(left_, key) > 0) forget_note(key);
  const auto found = launchers_.values.find(key);
  const size_t before =
      found == launchers_.values.end() ? 0 : key.size() + value_of(*found->second).size();
  const auto bytes = [&] { return notes_bytes_ - before + key.size() + value.size(); };
  while (bytes() > kMaxNotesBytes && !left_.empty()) forget_oldest_note();
  if (bytes() > kMaxNotesBytes || !set(launchers_, key, value)) return kFull;
  notes_bytes_ = bytes();
  session.note_ = key;
  setters_[key] = &session;
  launchers_changed_ = true;
  return "";
}

void StoreTable::leave(const StoreSession& session) {
  const auto setter = setters_.find(session.note_);
  if (setter == setters_.end() || setter->second != &session) return;  // it has connected again
  left_.push_back(setter->first);
  setters_.erase(setter);
  launchers_changed_ = true;
  if (left_.size() > kMaxLeftNotes) forget_oldest_note();
}

void StoreTable::forget_oldest_note() {
  const std::string key = std::move(left_.front());
  left_.pop_front();
  forget_note(key);
}

void StoreTable::forget_note(const std::string& key) {
  notes_bytes_ -= key.size() + value_of(*launchers_.values.at(key)).size();
  remove(launchers_, key);
}

std::map<std::string, LauncherValue> StoreTable::launcher_values() const {
  std::map<std::string, LauncherValue> all;
  for (const auto& [key, reply] : launchers_.values)
    if (!key.starts_with(kNews)) all[key] = {std::string(value_of(*reply)), setters_.contains(key)};
  return all;
}

void StoreTable::set_launcher_value(const std::string& key, std::string_view value) {
  if (!set(launchers_, key, value)) throw CommError(kFull);
}

std::pair<char, std::string> StoreTable::put(Space& space, const std::string& key,
                                             std::string_view value) {
  const auto m = parse_membership(value);
  if (!m) return {kNone, "put() without a member and a size"};
  const auto found = space.collections.find(key);
  if (found != space.collections.end() && found->second.size != m->size)
    return {kNone, fmt::format("`{}` has {} members, not {}", key.substr(0, kMaxReasonBytes),
                               found->second.size, m->size)};
  constexpr size_t kPlace = sizeof(std::unique_ptr<std::string>) + sizeof(std::string);
  const size_t begin = found != space.collections.end() ? 0 : key.size() + size_t(m->size) * kPlace;
  if (begin > 0 && !has_room(space, space.bytes + begin)) return {kNone, kFull};
  Collection& c = begin > 0 ? space.collections[key] : found->second;
  if (begin > 0) {
    c.size = m->size;
    c.texts.resize(size_t(m->size));
    c.bytes = begin;
    space.bytes += begin;
  }
  if (c.all || c.texts[size_t(m->member)]) return {kAnswer, "0"};
  constexpr size_t kRun = 2 * sizeof(uint32_t);
  const size_t text = m->text.size() + kRun;
  // All texts together must fit in one reply.
  if (c.bytes - size_t(c.size) * kPlace + text > kMaxValueBytes || space.bytes + text > kMaxBytes)
    return {kNone, kFull};
  c.texts[size_t(m->member)] = std::make_unique<std::string>(m->text);
  c.bytes += text;
  space.bytes += text;
  if (++c.present == c.size) {
    std::vector<std::string> texts;
    for (auto& t : c.texts) texts.push_back(std::move(*t));
    c.texts = std::vector<std::unique_ptr<std::string>>();
    c.all = reply_of(kAnswer, texts_in_runs(texts));
    wake(space, waiting_key(kAll, key), c.all);
  }
  return {kAnswer, "1"};
}

void StoreTable::wake(Space& space, const std::string& waited, const Reply& reply) {
  auto waiting = space.waiting.extract(waited);
  if (waiting.empty()) return;
  for (StoreSession* s : waiting.mapped()) {
    s->waits_ = StoreSession::Wait::none;
    s->send(reply);
    woken_.push_back(s->id_);
  }
}

void StoreTable::end_waits(Space& space, char kind, std::string_view reason) {
  const auto reply = reply_of(kind, reason);
  for (auto& [key, sessions] : std::exchange(space.waiting, {}))
    for (StoreSession* s : sessions) {
      s->waits_ = StoreSession::Wait::none;
      s->send(reply);
      woken_.push_back(s->id_);
    }
}

void StoreTable::fail_round(std::string_view reason) {
  if (!ranks_.failure.empty() || reason.empty()) return;
  ranks_.failure = reason.substr(0, kMaxReasonBytes);
  end_waits(ranks_, kNone, ranks_.failure);
}

std::string StoreTable::outdated(int64_t round) const {
  return fmt::format("start {} of this job has ended: all ranks have been restarted as start {}",
                     round, round_);
}

void StoreTable::begin_round(int64_t round) {
  MT_CHECK(round > round_, "round {} after round {}", round, round_);
  const int64_t ended = std::exchange(round_, round);
  end_waits(ranks_, kOldRound, outdated(ended));
  ranks_ = Space();
  std::vector<std::pair<int64_t, StoreSession*>> later;
  for (const auto& [asked, s] : std::exchange(early_, {})) {
    if (asked > round) {
      later.emplace_back(asked, s);
      continue;
    }
    s->waits_ = StoreSession::Wait::none;
    if (asked == round)
      s->answer(kAnswer, "");
    else
      s->answer(kOldRound, outdated(asked));
    woken_.push_back(s->id_);
  }
  early_.insert(early_.end(), later.begin(), later.end());
}

StoreSession::~StoreSession() {
  std::erase(table_.woken_, id_);
  table_.leave(*this);
  if (waits_ == Wait::round)
    std::erase_if(table_.early_, [&](const auto& early) { return early.second == this; });
  if (waits_ != Wait::key) return;
  StoreTable::Space& space = table_.space_of(round_);
  const auto waiting = space.waiting.find(waits_for_);
  std::erase(waiting->second, this);
  if (waiting->second.empty()) space.waiting.erase(waiting);
}

bool StoreSession::receive(std::string_view bytes) {
  // A client asks again only after it has its answer.
  if (waits_ != Wait::none) return false;
  try {
    in_ += bytes;
    return (state_ == State::open || prove()) && (state_ != State::open || serve());
  } catch (const CommError&) {
    return false;
  } catch (const std::bad_alloc&) {  // the other clients are served on
    return false;
  }
}

// Returns false if the client cannot know the token. Buffers at most kHelloBytes + kProofBytes from
// a stranger.
bool StoreSession::prove() {
  if (state_ == State::hello) {
    const size_t greeting = std::min(in_.size(), kStoreGreeting.size());
    if (in_.compare(0, greeting, kStoreGreeting, 0, greeting) != 0) return false;
    if (in_.size() < kHelloBytes) return true;
    std::memcpy(client_nonce_.data(), in_.data() + kStoreGreeting.size(), kNonceBytes);
    in_.erase(0, kHelloBytes);
    const Proof own = make_proof(table_.token_, StoreEnd::server, client_nonce_, nonce_);
    std::string hello(kStoreGreeting);
    hello.append(bytes_of(nonce_)).append(bytes_of(own));
    send(std::make_shared<const std::string>(std::move(hello)));
    state_ = State::proof;
  }
  if (in_.size() < kProofBytes) return true;
  const Proof right = make_proof(table_.token_, StoreEnd::client, client_nonce_, nonce_);
  if (!same_proof(right, std::string_view(in_).substr(0, kProofBytes))) return false;
  in_.erase(0, kProofBytes);
  state_ = State::open;
  send(std::make_shared<const std::string>(1, kWelcome));
  return true;
}

bool StoreSession::serve() {
  size_t done = 0;
  while (done < in_.size() && waits_ == Wait::none && reads()) {
    size_t at = done + 1;
    const auto key = take_text(in_, at, kMaxKeyBytes);
    const auto value = key ? take_text(in_, at, kMaxValueBytes) : std::nullopt;
    const char operation = in_[done];
    if (kOperations.find(operation) == std::string_view::npos) return false;
    if (!value) break;
    serve_one(operation, std::string(*key), *value);
    done = at;
  }
  in_.erase(0, done);
  return waits_ == Wait::none || in_.empty();
}

void StoreSession::serve_one(char operation, const std::string& key, std::string_view value) {
  if (operation == kEnter) return enter(key, value);
  if (!entered_) return answer(kNone, "a request without a job and a round");
  if (round_ != kLaunchers && round_ != table_.round_)
    return answer(kOldRound, table_.outdated(round_));
  if (round_ == kLaunchers)
    serve_launcher(operation, key, value);
  else
    serve_keys(table_.ranks_, operation, key, value);
}

void StoreSession::serve_launcher(char operation, const std::string& key, std::string_view value) {
  if (operation == kGet) return serve_keys(table_.launchers_, operation, key, value);
  if (operation != kSet) return answer(kNone, "a launcher sets its note, and gets news");
  const std::string refused = table_.set_note(*this, key, value);
  answer(refused.empty() ? kAnswer : kNone, refused);
}

void StoreSession::serve_keys(StoreTable::Space& space, char operation, const std::string& key,
                              std::string_view value) {
  switch (operation) {
    case kSet: return table_.set(space, key, value) ? answer(kAnswer, "") : answer(kNone, kFull);
    case kAdd: {
      const std::string sum = add(space, key, value);
      if (sum.empty()) return answer(kNone, "add() without a number");
      return table_.set(space, key, sum) ? answer(kAnswer, sum) : answer(kNone, kFull);
    }
    case kGet:
      if (const auto found = space.values.find(key); found != space.values.end())
        return send(found->second);
      return wait_for(space, waiting_key(kGet, key));
    case kRemove: return table_.remove(space, key), answer(kAnswer, "");
    case kFail: return table_.fail_round(value), answer(kAnswer, space.failure);
    case kPut: {
      const auto [kind, text] = table_.put(space, key, value);
      return answer(kind, text);
    }
    case kAll:
      if (const auto found = space.collections.find(key);
          found != space.collections.end() && found->second.all)
        return send(found->second.all);
      return wait_for(space, waiting_key(kAll, key));
    case kMissing: return missing(space, key, value);
  }
}

// The keys of earlier rounds are gone; a client of a later round waits until its round begins.
void StoreSession::enter(const std::string& job, std::string_view round) {
  const auto number = parse_number(round);
  if (entered_ || !number || *number < kLaunchers)
    return answer(kNone, "a round that cannot be entered");
  if (job != table_.job_)
    return answer(kOtherJob, fmt::format("the launcher there runs the job `{}`, not `{}`",
                                         table_.job_, job.substr(0, kMaxReasonBytes)));
  if (*number != kLaunchers && *number < table_.round_)
    return answer(kOldRound, table_.outdated(*number));
  entered_ = true;
  round_ = *number;
  if (round_ <= table_.round_) return answer(kAnswer, "");
  waits_ = Wait::round;
  table_.early_.emplace_back(round_, this);
}

void StoreSession::wait_for(StoreTable::Space& space, const std::string& waited) {
  if (!space.failure.empty()) return answer(kNone, space.failure);
  waits_ = Wait::key;
  waits_for_ = waited;
  space.waiting[waited].push_back(this);
}

void StoreSession::missing(const StoreTable::Space& space, const std::string& key,
                           std::string_view size) {
  const auto members = parse_number(size);
  if (!members || *members < 1 || *members > kMaxMembers)
    return answer(kNone, "a question for missing members without their number");
  const auto found = space.collections.find(key);
  const bool none = found == space.collections.end();
  if (!none && found->second.all) return answer(kAnswer, "");
  std::vector<int64_t> numbers;
  for (int64_t m = 0; m < *members; ++m)
    if (none || m >= found->second.size || !found->second.texts[size_t(m)]) numbers.push_back(m);
  answer(kAnswer, numbers_text(numbers));
}

// Returns the sum; "" if one of the two is not a number, or the sum does not fit in 64 bits.
std::string StoreSession::add(const StoreTable::Space& space, const std::string& key,
                              std::string_view value) {
  const auto found = space.values.find(key);
  const auto old = found == space.values.end() ? std::optional<int64_t>(0)
                                               : parse_number(value_of(*found->second));
  const auto delta = parse_number(value);
  int64_t sum = 0;
  if (!old || !delta || __builtin_add_overflow(*old, *delta, &sum)) return "";
  return std::to_string(sum);
}

void StoreSession::send(StoreTable::Reply reply) {
  queued_ += reply->size();
  out_.push_back(std::move(reply));
}

void StoreSession::answer(char kind, std::string_view text) { send(reply_of(kind, text)); }

std::string_view StoreSession::next_output() const {
  return out_.empty() ? "" : std::string_view(*out_.front()).substr(sent_);
}

bool StoreSession::sent(size_t bytes) {
  sent_ += bytes;
  if (sent_ == out_.front()->size()) {
    queued_ -= sent_;
    sent_ = 0;
    out_.pop_front();
  }
  try {
    return in_.empty() || state_ != State::open || serve();
  } catch (const CommError&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace mtrain::store
