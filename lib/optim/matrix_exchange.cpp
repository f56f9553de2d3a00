#include "optim/matrix_exchange.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "ops/blocks.h"
#include "ops/elementwise.h"

namespace mtrain::optim {

namespace {

// The most elements of the matrices that an owner holds at a time, unless one matrix is larger.
constexpr int64_t kRoundElements = 1 << 24;
// The floating-point operations that a rank computes in the time in which one element travels to
// the owner and back.
constexpr double kFlopsPerElement = 4096;

Tensor owned_grad(const model::Parameter& p, const Tile& tile) {
  for (const model::OwnedRange& r : p.unit->owned)
    if (r.begin <= tile.in_unit && tile.in_unit + tile.count() <= r.begin + r.count)
      return r.grad.flat(tile.in_unit - r.begin, {tile.count()});
  throw BugError(fmt::format("this rank does not own a tile of {}", p.name));
}

void copy_tile(Stream& stream, const Tensor& elements, const Tensor& full_RC, const Tile& t) {
  ops::copy_blocks(stream, elements.view({t.rows, t.columns}), full_RC,
                   {{.from_row = 0,
                     .from_column = 0,
                     .to_row = t.row,
                     .to_column = t.column,
                     .rows = t.rows,
                     .columns = t.columns}});
}
void copy_from_tile(Stream& stream, const Tensor& full_RC, const Tile& t, const Tensor& elements) {
  ops::copy_blocks(stream, full_RC, elements.view({t.rows, t.columns}),
                   {{.from_row = t.row,
                     .from_column = t.column,
                     .to_row = 0,
                     .to_column = 0,
                     .rows = t.rows,
                     .columns = t.columns}});
}

// The ranks of each place, in rising order.
std::map<Place, std::vector<int>> ranks_by_place(const std::vector<Place>& places) {
  std::map<Place, std::vector<int>> ranks;
  for (size_t r = 0; r < places.size(); ++r) ranks[places[r]].push_back(int(r));
  return ranks;
}

}  // namespace

MatrixExchange::MatrixExchange(Stream& compute, const MatrixRanks& ranks, model::ParamStore& params,
                               const OwnedState::Has& has, const Flops& flops, bool per_shard)
    : compute_(compute), stream_(ranks.stream), group_(ranks.group) {
  std::vector<const model::Parameter*> with;
  for (const model::Parameter* p : params.params())
    if (has(*p)) with.push_back(p);
  const auto places = exchange_places(with);
  std::vector<Owned> matrices;
  std::vector<size_t> param_of;
  std::vector<double> work;
  std::vector<std::map<Place, int64_t>> held;  // elements, by place
  for (size_t i = 0; i < with.size(); ++i) {
    const auto by_place = ranks_by_place(places[i]);
    for (const Matrix& m : per_shard ? shard_matrices_of(*with[i]) : matrices_of(*with[i])) {
      matrices.push_back({with[i], m});
      param_of.push_back(i);
      work.push_back(flops(m.rows, m.columns));
      held.emplace_back();
      for (const auto& [place, at] : by_place)
        for (const Tile& t : tiles_of(*with[i], m, place)) held.back()[place] += t.count();
    }
  }
  const auto moves = [&](size_t i, int rank) {
    const auto at = held[i].find(places[param_of[i]][size_t(rank)]);
    const Matrix& m = matrices[i].matrix;
    return kFlopsPerElement * double(m.rows * m.columns - (at == held[i].end() ? 0 : at->second));
  };
  const std::vector<int> owners = balanced_owners(work, group_.size(), moves);

  // Each owner takes its matrices in decreasing order of work. The matrices of a round are then of
  // similar size on all owners.
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return work[i]; });
  // Making a group is a collective call. Therefore all ranks make the groups in the same order.
  std::map<std::vector<int>, Group> groups;
  const Subgroup subgroup = [&](const std::vector<int>& members) {
    std::vector<int> of_world;
    for (const int r : members) of_world.push_back(group_.ranks()[size_t(r)]);
    Group& g = groups[of_world];
    if (!g) g = ranks.subgroup(of_world);
    return g;
  };
  struct Load {
    size_t round = 0;
    int64_t elements = 0;
  };
  std::vector<Load> loads(static_cast<size_t>(group_.size()));
  for (const size_t i : order) {
    const Owned& m = matrices[i];
    Load& load = loads[size_t(owners[i])];
    const int64_t count = m.matrix.rows * m.matrix.columns;
    if (load.elements > 0 && load.elements + count > kRoundElements)
      load = {.round = load.round + 1};
    load.elements += count;
    if (rounds_.size() <= load.round) rounds_.resize(load.round + 1);
    add_parts(rounds_[load.round], m, owners[i], places[param_of[i]], subgroup);
  }
  for (Round& r : rounds_)
    for (std::vector<Part>* parts : {&r.sent, &r.collected, &r.results, &r.returned})
      std::ranges::stable_sort(*parts, {}, &Part::peer);
}

std::vector<std::vector<Place>> MatrixExchange::exchange_places(
    const std::vector<const model::Parameter*>& params) const {
  std::vector<int64_t> own;
  for (const model::Parameter* p : params) {
    const Place place = place_of(*p);
    own.insert(own.end(), {place.shard, place.expert, place.data});
  }
  const auto count = int64_t(own.size());
  std::vector<std::vector<Place>> places(params.size());
  if (count == 0) return places;
  const Tensor here = Tensor::from_host(stream_, {count}, own),
               all = Tensor::empty(stream_, {count * group_.size()}, DType::i64,
                                   device::MemoryCategory::buffers);
  group_.all_gather(here, all, stream_);
  const std::vector<int64_t> numbers = all.to_host<int64_t>(stream_);
  for (int r = 0; r < group_.size(); ++r)
    for (size_t i = 0; i < params.size(); ++i) {
      const int64_t* n = numbers.data() + r * count + int64_t(3 * i);
      places[i].push_back({int(n[0]), int(n[1]), int(n[2])});
    }
  return places;
}

// Ranks at equal places have the same elements, one rank in each replica of the model. Of these,
// the rank in the owner's replica sends the elements and receives the result. `number` is the index
// of that replica.
void MatrixExchange::add_parts(Round& round, const Owned& m, int owner,
                               const std::vector<Place>& places, const Subgroup& subgroup) const {
  const auto ranks = ranks_by_place(places);
  const int here = group_.rank();
  const std::vector<int>& like_owner = ranks.at(places[size_t(owner)]);
  const auto number = size_t(std::ranges::find(like_owner, owner) - like_owner.begin());
  const size_t slot = round.owned.size();
  if (owner == here) round.owned.push_back(m);
  for (const auto& [place, at] : ranks) {
    const size_t leader = std::min(number, at.size() - 1);
    const int sender = at[leader];
    const bool copies = at.size() > 1 && std::ranges::find(at, here) != at.end();
    for (const Tile& tile : tiles_of(*m.param, m.matrix, place)) {
      const auto part = [&](int peer) { return Part{peer, slot, m.param, tile}; };
      if (!tile.copy) {
        round.gathers = round.gathers || sender != owner;
        if (owner == here) round.collected.push_back(part(sender));
        if (sender == here && owner != here) round.sent.push_back(part(owner));
      }
      round.returns = round.returns || sender != owner;
      if (owner == here) round.results.push_back(part(sender));
      if (sender == here && owner != here) round.returned.push_back(part(owner));
      if (copies) round.copies.push_back({subgroup(at), int(leader), m.param, tile});
    }
  }
}

// Allocates a message for the parts that travel. Those of this rank itself do not.
MatrixExchange::Message MatrixExchange::message_of(const std::vector<Part>& parts) const {
  Message m{.data = {}, .counts = std::vector<int64_t>(size_t(group_.size()))};
  int64_t all = 0;
  for (const Part& p : parts)
    if (p.peer != group_.rank()) m.counts[size_t(p.peer)] += p.tile.count(), all += p.tile.count();
  m.data = Tensor::empty(compute_, {std::max<int64_t>(all, 1)}, DType::f32,
                         device::MemoryCategory::buffers);
  return m;
}

namespace {

// Calls f(part, its elements in the message) for each part that travels.
template <class Parts, class F>
void for_parts(const Parts& parts, int here, const Tensor& data, const F& f) {
  int64_t first = 0;
  for (const auto& p : parts) {
    if (p.peer == here) continue;
    f(p, data.flat(first, {p.tile.count()}));
    first += p.tile.count();
  }
}

}  // namespace

MatrixExchange::Gathered MatrixExchange::gather(const Round& round) const {
  Gathered g;
  if (!round.gathers) return g;
  const Message sent = message_of(round.sent);
  for_parts(round.sent, group_.rank(), sent.data, [&](const Part& p, const Tensor& elements) {
    ops::cast(compute_, owned_grad(*p.param, p.tile), elements);
  });
  g.received = message_of(round.collected);
  stream_.wait(compute_.record());  // edge: the parts -> their way to the owners
  group_.all_to_all(sent.data, sent.counts, g.received.data, g.received.counts, stream_);
  g.arrived = stream_.record();
  return g;
}

void MatrixExchange::place(const Round& round, Gathered& g) const {
  compute_.wait(g.arrived);  // edge: the parts' arrival -> the matrices
  for (size_t slot = 0; slot < round.owned.size(); ++slot) {
    const Matrix& m = round.owned[slot].matrix;
    const auto own = std::ranges::find_if(round.collected, [&](const Part& p) {
      return p.slot == slot && p.peer == group_.rank() && p.tile.count() == m.rows * m.columns;
    });
    g.full.push_back(own == round.collected.end()
                         ? Tensor::empty(compute_, {m.rows, m.columns}, DType::f32,
                                         device::MemoryCategory::buffers)
                         : owned_grad(*own->param, own->tile).view({m.rows, m.columns}));
    g.in_place.push_back(own != round.collected.end());
  }
  for (const Part& p : round.collected)
    if (p.peer == group_.rank() && !g.in_place[p.slot])
      copy_tile(compute_, owned_grad(*p.param, p.tile), g.full[p.slot], p.tile);
  for_parts(round.collected, group_.rank(), g.received.data,
            [&](const Part& p, const Tensor& elements) {
              copy_tile(compute_, elements, g.full[p.slot], p.tile);
            });
  g.received = {};
}

MatrixExchange::Message MatrixExchange::give_back(const Round& round, const Gathered& g,
                                                  Event& arrived) const {
  for (const Part& p : round.results)
    if (p.peer == group_.rank() && !g.in_place[p.slot])
      copy_from_tile(compute_, g.full[p.slot], p.tile, owned_grad(*p.param, p.tile));
  if (!round.returns) return {};
  const Message sent = message_of(round.results);
  for_parts(round.results, group_.rank(), sent.data, [&](const Part& p, const Tensor& elements) {
    copy_from_tile(compute_, g.full[p.slot], p.tile, elements);
  });
  Message received = message_of(round.returned);
  stream_.wait(compute_.record());  // edge: the results -> their way back
  group_.all_to_all(sent.data, sent.counts, received.data, received.counts, stream_);
  arrived = stream_.record();
  return received;
}

void MatrixExchange::take_back(const Round& round, const Message& received,
                               const Event& arrived) const {
  if (!round.returns) return;
  compute_.wait(arrived);  // edge: the results' arrival -> the gradients' memory
  for_parts(round.returned, group_.rank(), received.data,
            [&](const Part& p, const Tensor& elements) {
              ops::cast(compute_, elements, owned_grad(*p.param, p.tile));
            });
}

void MatrixExchange::broadcast(const Round& round) const {
  if (round.copies.empty()) return;
  stream_.wait(compute_.record());  // edge: the results -> their broadcast
  for (const Copy& c : round.copies)
    c.ranks.broadcast(owned_grad(*c.param, c.tile), c.root, stream_);
}

void MatrixExchange::run(const std::function<void(const Owned&, const Tensor&)>& work) const {
  if (rounds_.empty()) return;
  Gathered next = gather(rounds_[0]);
  Message returning;
  Event arrived;
  for (size_t k = 0; k < rounds_.size(); ++k) {
    Gathered now =
        std::exchange(next, k + 1 < rounds_.size() ? gather(rounds_[k + 1]) : Gathered());
    place(rounds_[k], now);
    for (size_t slot = 0; slot < now.full.size(); ++slot)
      work(rounds_[k].owned[slot], now.full[slot]);
    if (k > 0) {
      take_back(rounds_[k - 1], std::exchange(returning, {}), arrived);
      broadcast(rounds_[k - 1]);
    }
    returning = give_back(rounds_[k], now, arrived);
  }
  take_back(rounds_.back(), returning, arrived);
  broadcast(rounds_.back());
  compute_.wait(stream_.record());  // edge: the last result -> the update
}

}  // namespace mtrain::optim
