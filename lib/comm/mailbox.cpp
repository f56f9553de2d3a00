#include "comm/mailbox.h"

#include <map>
#include <mutex>

#include <fmt/core.h>

#include "store/store.h"
#include "store/store_protocol.h"

namespace mtrain::comm {

namespace {

class SharedMailbox : public Mailbox {
 public:
  void put(const std::string& key, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    texts_[key] = text;
  }
  std::optional<std::string> find(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto at = texts_.find(key);
    return at == texts_.end() ? std::nullopt : std::optional(at->second);
  }
  void remove(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    texts_.erase(key);
  }
  int64_t add(const std::string& number, int64_t delta) override {
    const std::lock_guard lock(mutex_);
    return numbers_[number] += delta;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, int64_t> numbers_;
};

// A long text has several keys of the store, since a value has a largest size.
class StoreMailbox : public Mailbox {
 public:
  StoreMailbox(const store::StoreAddress& at, std::chrono::milliseconds timeout)
      : store_(at, timeout) {}

  void put(const std::string& key, const std::string& text) override {
    int64_t parts = 0;
    do {
      store_.set(part_key(key, parts), text.substr(size_t(parts) * kPart, kPart));
      ++parts;
    } while (size_t(parts) * kPart < text.size());
    store_.add(count_key(key), parts);  // last: readers look here first
  }
  std::optional<std::string> find(const std::string& key) override {
    const int64_t parts = store_.add(count_key(key), 0);
    if (parts == 0) return std::nullopt;
    std::string text;
    for (int64_t i = 0; i < parts; ++i) text += store_.get(part_key(key, i));
    return text;
  }
  void remove(const std::string& key) override {
    const int64_t parts = store_.add(count_key(key), 0);
    for (int64_t i = 0; i < parts; ++i) store_.remove(part_key(key, i));
    store_.remove(count_key(key));
  }
  int64_t add(const std::string& number, int64_t delta) override {
    return store_.add(fmt::format("mail number/{}", number), delta);
  }

 private:
  static constexpr size_t kPart = store::kMaxValueBytes / 2;
  static std::string part_key(const std::string& key, int64_t part) {
    return fmt::format("mail/{}/{}", key, part);
  }
  static std::string count_key(const std::string& key) { return fmt::format("mail/{}/parts", key); }

  store::Store store_;
};

}  // namespace

std::shared_ptr<Mailbox> shared_mailbox() { return std::make_shared<SharedMailbox>(); }

std::shared_ptr<Mailbox> store_mailbox(const store::StoreAddress& at,
                                       std::chrono::milliseconds timeout) {
  return std::make_shared<StoreMailbox>(at, timeout);
}

}  // namespace mtrain::comm
