#include "device/backend.h"

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"

namespace mtrain::device {

void AsyncError::set(std::exception_ptr failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
}

void AsyncError::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

std::exception_ptr with_culprit(std::exception_ptr failure, const LaunchTag& tag, StreamId stream) {
  const bool scoped = tag.scope && !tag.scope->empty();
  const std::string culprit =
      fmt::format("\n  in `{}`, item {} of stream {}{}{}", tag.name, tag.number,
                  stream_name(stream), scoped ? ", in " : "", scoped ? *tag.scope : "");
  try {
    std::rethrow_exception(failure);
  } catch (const UserError& e) {
    return std::make_exception_ptr(UserError(e.message() + culprit, e.hint()));
  } catch (const RunError& e) {
    return std::make_exception_ptr(RunError(e.message() + culprit, e.hint()));
  } catch (const CommError& e) {
    return std::make_exception_ptr(CommError(e.message() + culprit, e.hint()));
  } catch (const BugError& e) {
    return std::make_exception_ptr(BugError(e.message() + culprit));
  } catch (const std::bad_alloc& e) {
    const std::string what = e.what();  // a program's own operator new may tell more
    return std::make_exception_ptr(RunError(
        (what == "std::bad_alloc" ? "out of memory" : "out of memory: " + what) + culprit));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(RunError(e.what() + culprit));
  } catch (...) {
    return failure;
  }
}

void copy_on_device(const LaunchContext& context, void* to, const void* from, int64_t bytes) {
  if (to == from || bytes == 0) return;
  if (context.cuda)
    copy_by_cuda(context.cuda, to, from, bytes);
  else
    std::memcpy(to, from, size_t(bytes));
}

void StreamBackend::begin_capture() { throw RunError("this device records no graphs"); }
Work StreamBackend::end_capture() { throw BugError("end_capture() without begin_capture()"); }

std::shared_ptr<void> DeviceBackend::host_memory(int64_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(size_t(bytes));
  return {memory, memory->data()};
}

}  // namespace mtrain::device
