#include "model/param/whole_parameters.h"

#include "spec/tensors.h"

namespace mtrain::model {

namespace {
void add(ParamStore& params, UnitId unit, const std::vector<spec::TensorSpec>& tensors) {
  for (const spec::TensorSpec& t : tensors) {
    if (t.role == TensorRole::state) continue;
    if (t.split.experts) unit.kind = UnitKind::experts;  // the last ones of a layer
    params.add(unit,
               {.name = t.name, .shape = t.whole, .init = t.init, .std = t.std, .role = t.role});
  }
}
}  // namespace

std::unique_ptr<ParamStore> whole_parameters(const spec::ModelSpec& model) {
  auto params = std::make_unique<ParamStore>();
  add(*params, UnitKind::embedding, spec::embedding_tensors(model));
  for (int64_t layer = 0; layer < model.layer_count(); ++layer)
    add(*params, {UnitKind::layer, layer}, spec::layer_tensors(model, layer));
  add(*params, UnitKind::output, spec::output_tensors(model));
  return params;
}

}  // namespace mtrain::model
