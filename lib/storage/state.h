// The named values that a resumed run needs in addition to its tensors. The file is JSON with a
// format number.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace mtrain::storage {

class TrainState {
 public:
  // Formats of the file. A reader of the first takes the number of steps for the position in the
  // data, which is wrong after a change of the batch.
  static constexpr int kFormat = 1, kFormatOfSamples = 2;

  void set(std::string key, int64_t value) { values_[std::move(key)] = value; }
  void set(std::string key, int value) { set(std::move(key), int64_t(value)); }
  void set(std::string key, std::string value) { values_[std::move(key)] = std::move(value); }
  void set(std::string key, const char* value) { set(std::move(key), std::string(value)); }

  // Makes readers of the first format refuse the file.
  void needs_samples() { format_ = kFormatOfSamples; }

  bool contains(std::string_view key) const { return values_.find(key) != values_.end(); }

  // These throw UserError, which names the file of the state, if the key is missing or its value
  // has another type.
  int64_t integer(std::string_view key) const;
  const std::string& text(std::string_view key) const;

  // The caller makes the file durable by sync_tree().
  void save(const std::filesystem::path& path) const;
  // Throws UserError if the file cannot be read or has another format, RunError if it is damaged.
  static TrainState load(const std::filesystem::path& path);

 private:
  using Value = std::variant<int64_t, std::string>;
  const Value& at(std::string_view key) const;
  template <class T>
  const T& get(std::string_view key, const char* kind) const;

  int format_ = kFormat;
  std::map<std::string, Value, std::less<>> values_;
  std::string origin_ = "the training state";
};

}  // namespace mtrain::storage
