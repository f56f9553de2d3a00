#include "comm/host_collectives.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace mtrain::comm {

HostCollectives::HostCollectives(World& world, Device& device)
    : rank_(world.rank()),
      size_(world.size()),
      compute_(&device.stream(device::StreamKind::compute)) {
  if (size_ == 1) return;
  world_group_ = world.world_group(Traffic::scalars);
  stream_ = &device.stream(device::StreamKind::control);
}

int64_t HostCollectives::least(int64_t own) const {
  if (size_ == 1) return own;
  const Tensor t = Tensor::from_host<int64_t>(*stream_, {1}, {-own});
  world_group_.all_reduce(t, Reduce::max, *stream_);
  compute_->wait(stream_->record());
  return -t.to_host<int64_t>(*stream_)[0];
}

bool HostCollectives::any(bool own) const { return least(own ? 0 : 1) == 0; }

std::vector<bool> HostCollectives::any_of(const std::vector<bool>& own) const {
  if (size_ == 1) return own;
  const auto n = int64_t(own.size());
  const Tensor t = Tensor::from_host<int64_t>(*stream_, {n}, {own.begin(), own.end()});
  world_group_.all_reduce(t, Reduce::max, *stream_);
  compute_->wait(stream_->record());
  const std::vector<int64_t> all = t.to_host<int64_t>(*stream_);
  return {all.begin(), all.end()};
}

std::vector<HostCollectives::Largest> HostCollectives::largest(
    const std::vector<int64_t>& own) const {
  // A value and its rank are one number, so a single reduction finds both.
  std::vector<int64_t> numbers;
  for (const int64_t value : own) {
    MT_CHECK(value >= 0 && value <= (std::numeric_limits<int64_t>::max() - size_) / size_,
             "{} on {} ranks", value, size_);
    numbers.push_back(value * size_ + (size_ - 1 - rank_));
  }
  if (size_ > 1) {
    const Tensor t = Tensor::from_host<int64_t>(*stream_, {int64_t(own.size())}, numbers);
    world_group_.all_reduce(t, Reduce::max, *stream_);
    compute_->wait(stream_->record());
    numbers = t.to_host<int64_t>(*stream_);
  }
  std::vector<Largest> all;
  for (const int64_t number : numbers)
    all.push_back({.value = number / size_, .rank = size_ - 1 - int(number % size_)});
  return all;
}

std::vector<int64_t> HostCollectives::lengths(const std::string& own) const {
  const Tensor in = Tensor::from_host<int64_t>(*stream_, {1}, {int64_t(own.size())}),
               out = Tensor::empty(*stream_, {size_}, in.dtype(), device::MemoryCategory::buffers);
  world_group_.all_gather(in, out, *stream_);
  compute_->wait(stream_->record());
  return out.to_host<int64_t>(*stream_);
}

std::vector<std::string> HostCollectives::texts(const std::string& own) const {
  if (size_ == 1) return {own};
  // The other ranks do not exist; each counts as having this rank's text.
  if (compute_->device().is_recording()) return std::vector<std::string>(size_t(size_), own);
  const std::vector<int64_t> all = lengths(own);
  const int64_t longest = std::max<int64_t>(1, *std::ranges::max_element(all));
  std::vector<uint8_t> padded(own.begin(), own.end());
  padded.resize(size_t(longest));
  const Tensor in = Tensor::from_host(*stream_, {longest}, padded),
               out = Tensor::empty(*stream_, {longest * size_}, in.dtype(),
                                   device::MemoryCategory::buffers);
  world_group_.all_gather(in, out, *stream_);
  compute_->wait(stream_->record());
  const std::vector<uint8_t> bytes = out.to_host<uint8_t>(*stream_);
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) {
    const auto begin = bytes.begin() + r * longest;
    texts.emplace_back(begin, begin + all[size_t(r)]);
  }
  return texts;
}

std::vector<std::string> HostCollectives::texts_on_first(const std::string& own) const {
  if (size_ == 1) return {own};
  const bool first = rank_ == 0;
  const std::vector<int64_t> all = lengths(own), none(size_t(size_), 0);
  std::vector<int64_t> sends = none;
  sends[0] = int64_t(own.size());
  std::vector<uint8_t> bytes(std::max<size_t>(1, own.size()));  // no tensor is empty
  std::ranges::copy(own, bytes.begin());
  const int64_t received = first ? std::accumulate(all.begin(), all.end(), int64_t{0}) : 0;
  const Tensor in = Tensor::from_host(*stream_, {int64_t(bytes.size())}, bytes),
               out = Tensor::empty(*stream_, {std::max<int64_t>(1, received)}, in.dtype(),
                                   device::MemoryCategory::buffers);
  world_group_.all_to_all(in, sends, out, first ? all : none, *stream_);
  compute_->wait(stream_->record());
  std::vector<std::string> texts;
  if (!first) return texts;
  const std::vector<uint8_t> gathered = out.to_host<uint8_t>(*stream_);
  auto begin = gathered.begin();
  for (const int64_t length : all) {
    texts.emplace_back(begin, begin + length);
    begin += length;
  }
  return texts;
}

}  // namespace mtrain::comm
