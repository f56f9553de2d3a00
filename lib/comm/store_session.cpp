#include "comm/store_session.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace mtrain::comm {

namespace {

std::shared_ptr<const std::string> reply_of(char kind, std::string_view text) {
  std::string reply;
  append_text(reply, std::string(1, kind).append(text));
  return std::make_shared<const std::string>(std::move(reply));
}

constexpr size_t kReplyHead = sizeof(uint32_t) + 1;  // length and kind

std::string_view value_of(const std::string& reply) {
  return std::string_view(reply).substr(kReplyHead);
}

}  // namespace

bool StoreTable::set(const std::string& key, std::string_view value) {
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : value_of(*found->second).size() + key.size();
  const size_t after = bytes_ - before + key.size() + value.size();
  if (after > kMaxBytes || (found == values_.end() && values_.size() >= kMaxKeys)) return false;
  bytes_ = after;
  values_[key] = reply_of(kAnswer, value);
  wake(key);
  return true;
}

void StoreTable::remove(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return;
  bytes_ -= key.size() + value_of(*found->second).size();
  values_.erase(found);
}

void StoreTable::wake(const std::string& key) {
  auto waiting = waiting_.extract(key);
  if (waiting.empty()) return;
  for (StoreSession* s : waiting.mapped()) {
    s->waits_ = false;
    s->send(values_.at(key));
    woken_.push_back(s->id_);
  }
}

void StoreTable::end_waits(std::string_view reason) {
  failure_ = reason.substr(0, kMaxReasonBytes);
  const auto reply = reply_of(kNone, failure_);
  for (auto& [key, sessions] : std::exchange(waiting_, {}))
    for (StoreSession* s : sessions) {
      s->waits_ = false;
      s->send(reply);
      woken_.push_back(s->id_);
    }
}

StoreSession::~StoreSession() {
  std::erase(table_.woken_, id_);
  if (!waits_) return;
  const auto waiting = table_.waiting_.find(waits_for_);
  std::erase(waiting->second, this);
  if (waiting->second.empty()) table_.waiting_.erase(waiting);
}

bool StoreSession::receive(std::string_view bytes) {
  // A client asks again only after it has its answer.
  if (waits_) return false;
  in_ += bytes;
  try {
    return (state_ == State::open || prove()) && (state_ != State::open || serve());
  } catch (const CommError&) {
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
  while (done < in_.size() && !waits_ && reads()) {
    size_t at = done + 1;
    const auto key = take_text(in_, at, kMaxKeyBytes);
    const auto value = key ? take_text(in_, at, kMaxValueBytes) : std::nullopt;
    const char operation = in_[done];
    if (operation != kSet && operation != kGet && operation != kAdd && operation != kRemove &&
        operation != kFail)
      return false;
    if (!value) break;
    serve_one(operation, std::string(*key), *value);
    done = at;
  }
  in_.erase(0, done);
  return !waits_ || in_.empty();
}

void StoreSession::serve_one(char operation, const std::string& key, std::string_view value) {
  constexpr const char* kFull = "the rendezvous is full";
  switch (operation) {
    case kSet: return table_.set(key, value) ? answer(kAnswer, "") : answer(kNone, kFull);
    case kAdd: {
      const std::string sum = add(key, value);
      if (sum.empty()) return answer(kNone, "add() without a number");
      return table_.set(key, sum) ? answer(kAnswer, sum) : answer(kNone, kFull);
    }
    case kGet: return get(key);
    case kRemove: return table_.remove(key), answer(kAnswer, "");
    case kFail:
      if (table_.failure_.empty() && !value.empty()) table_.end_waits(value);
      return answer(kAnswer, table_.failure_);
  }
}

void StoreSession::get(const std::string& key) {
  if (const auto found = table_.values_.find(key); found != table_.values_.end())
    return send(found->second);
  if (!table_.failure_.empty()) return answer(kNone, table_.failure_);
  waits_ = true;
  waits_for_ = key;
  table_.waiting_[key].push_back(this);
}

// Returns the sum; "" if one of the two is not a number, or the sum does not fit in 64 bits.
std::string StoreSession::add(const std::string& key, std::string_view value) {
  const auto found = table_.values_.find(key);
  const auto old = found == table_.values_.end() ? std::optional<int64_t>(0)
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
  }
}

}  // namespace mtrain::comm
