#include "train/parameter_pieces.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace mtrain::train {

Pieces pieces(Trainer& trainer, const std::function<Tensor(model::ParamUnit&)>& full) {
  Pieces all;
  for (model::ParamUnit* unit : trainer.params().units()) {
    const Tensor values = full(*unit);
    for (const model::Parameter* p : unit->params)
      all[p->name] = {p->runs(), values.flat(p->begin, p->shape).to_host_float(trainer.compute())};
  }
  return all;
}

Pieces first_moments(Trainer& trainer) {
  const auto states = trainer.optimizer().state();
  return pieces(trainer, [&](model::ParamUnit& unit) {
    return trainer.data_parallel().gather_unit(unit,
                                               states.front().values.own(trainer.compute(), unit));
  });
}

AssembledTensor assemble_pieces(const std::vector<const Pieces*>& ranks, const std::string& name) {
  AssembledTensor tensor;
  std::vector<char> known;
  for (const Pieces* of_rank : ranks) {
    const auto found = of_rank->find(name);
    if (found == of_rank->end()) continue;  // on another stage
    const Piece& piece = found->second;
    for (const model::ElementRun& run : piece.runs) {
      const auto end = size_t(run.full + run.count);
      if (tensor.values.size() < end) tensor.values.resize(end), known.resize(end);
      MT_CHECK(size_t(run.here + run.count) <= piece.values.size(), "a piece of {}", name);
      const float* values = piece.values.data() + run.here;
      for (auto at = size_t(run.full); at < end; ++at, ++values) {
        if (!known[at]) known[at] = 1, tensor.values[at] = *values;
        tensor.same = tensor.same && std::bit_cast<uint32_t>(tensor.values[at]) ==
                                         std::bit_cast<uint32_t>(*values);
      }
    }
  }
  tensor.complete = std::ranges::find(known, 0) == known.end();
  return tensor;
}

}  // namespace mtrain::train
