// The memory of a channel is opened only if the group's first rank has made it.
#include "comm/process/channel_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace comm_channel_memory_test {

using namespace mtrain;
using namespace mtrain::comm;

namespace {

constexpr size_t kBytes = 1 << 16;

std::string place_of(int fd) { return fmt::format("{} {}", getpid(), fd); }

void expect_refused(const std::string& what, const std::string& place,
                    ProcessIdentity owner = ProcessIdentity::own()) {
  CAPTURE(what, place);
  CHECK_THROWS_AS(ChannelMemory::open(place, owner, kBytes), CommError);
}

int memory_file(size_t bytes, int seals) {
  const int fd = memfd_create("mtrain channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, off_t(bytes)) == 0);
  REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

}  // namespace

TEST_CASE("two ends of a channel share memory that no process can resize") {
  const auto made = ChannelMemory::make(kBytes);
  const auto opened = ChannelMemory::open(made->place(), ProcessIdentity::own(), kBytes);
  std::strcpy(static_cast<char*>(made->data()), "here");
  CHECK(std::string(static_cast<const char*>(opened->data())) == "here");
  const int fd = std::atoi(made->place().substr(made->place().find(' ')).c_str());
  CHECK(ftruncate(fd, kBytes / 2) != 0);
  CHECK(ftruncate(fd, kBytes * 2) != 0);
}

TEST_CASE("no place names a file, another process, or memory that the first rank did not make") {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const auto made = ChannelMemory::make(kBytes);
  const std::string place = made->place();
  char name[] = "/tmp/mtrain-bait-XXXXXX";
  const int bait = mkstemp(name);
  REQUIRE(ftruncate(bait, kBytes) == 0);
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  const int unsealed = memory_file(kBytes, F_SEAL_SHRINK | F_SEAL_GROW),
            short_one = memory_file(kBytes / 2, kSeals), long_one = memory_file(kBytes * 2, kSeals);
  for (const std::string& wrong :
       {std::string("/etc/passwd"), std::string(name), "/proc/self/fd/" + std::to_string(bait),
        std::string(), " " + place, place + " ", place + "/../" + std::to_string(bait), "-" + place,
        fmt::format("{} -1", getpid()), fmt::format("{} 99999", getpid()),
        std::string("18446744073709551615 3"), std::string("\0 3", 3)})
    expect_refused("not two numbers", wrong);
  expect_refused("a file", place_of(bait));
  expect_refused("a pipe", place_of(pipes[0]));
  expect_refused("a folder", place_of(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  expect_refused("memory that can be sealed", place_of(unsealed));
  expect_refused("too little memory", place_of(short_one));
  expect_refused("too much memory", place_of(long_one));
  expect_refused("another process's place", fmt::format("{} 1", getppid()));
  ProcessIdentity ended = ProcessIdentity::own();
  ended.started = "1";
  expect_refused("a process of which the number was given to another", place, ended);
  for (const int fd : {bait, pipes[0], pipes[1], unsealed, short_one, long_one}) close(fd);
  unlink(name);
}

}  // namespace comm_channel_memory_test
