#include "comm/host_collectives.h"

#include <algorithm>

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

std::vector<std::string> HostCollectives::texts(const std::string& own) const {
  if (size_ == 1) return {own};
  const auto all = [&](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    const auto n = int64_t(values.size());
    const Tensor in = Tensor::from_host(*stream_, {n}, values),
                 out = Tensor::empty(*stream_, {n * size_}, in.dtype(),
                                     device::MemoryCategory::buffers);
    world_group_.all_gather(in, out, *stream_);
    compute_->wait(stream_->record());
    return out.to_host<T>(*stream_);
  };
  const std::vector<int64_t> lengths = all(std::vector<int64_t>{int64_t(own.size())});
  const int64_t longest = std::max<int64_t>(1, *std::ranges::max_element(lengths));
  std::vector<uint8_t> padded(own.begin(), own.end());
  padded.resize(size_t(longest));
  const std::vector<uint8_t> bytes = all(padded);
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) {
    const auto begin = bytes.begin() + r * longest;
    texts.emplace_back(begin, begin + lengths[size_t(r)]);
  }
  return texts;
}

}  // namespace mtrain::comm
