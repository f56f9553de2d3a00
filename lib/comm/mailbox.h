// Texts and numbers that ranks pass to each other apart from all collectives. Threads that work
// while the ranks train exchange them.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace mtrain::store {
struct StoreAddress;
}

namespace mtrain::comm {

// Any thread may call these functions, and none waits for another rank. They throw CommError if the
// job's store is gone.
class Mailbox {
 public:
  Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  virtual ~Mailbox() = default;

  // A key gets one text.
  virtual void put(const std::string& key, const std::string& text) = 0;
  // Returns the text of the key; nothing while it has none.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Forgets the key and its text.
  virtual void remove(const std::string& key) = 0;
  // Adds `delta` to a number that begins at 0, and returns the sum. Numbers have names of their
  // own.
  virtual int64_t add(const std::string& number, int64_t delta) = 0;
};

// Ranks that are threads share one object.
std::shared_ptr<Mailbox> shared_mailbox();

// Ranks that are processes: each opens a connection of its own to the job's store.
std::shared_ptr<Mailbox> store_mailbox(const store::StoreAddress& at,
                                       std::chrono::milliseconds timeout);

}  // namespace mtrain::comm
