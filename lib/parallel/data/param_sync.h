// The half of a data-parallel strategy that decides where parameters live and when they are
// gathered.
#pragma once
#include <memory>

#include "model/data_parallel.h"
#include "model/param/parameters.h"
#include "model/quantizer.h"
#include "model/step.h"
#include "parallel/data/data_groups.h"
#include "plan/options/data_parallel_options.h"

namespace mtrain::parallel {

class ParamSync : public model::ParamHooks {
 public:
  // As in model::DataParallel.
  virtual void updated(model::ParamUnit&) {}
  virtual void before_update() {}
  virtual model::HookState hook_state() const { return {}; }
  virtual void set_hook_state(const model::HookState&, const Event& /*done*/) {}
};

// Every rank owns everything (ddp), and nothing is gathered.
std::unique_ptr<ParamSync> replicated_params();

// Every rank keeps full values and updates a part of them (ZeRO-1 and -2). They are gathered from
// the owners after an update. With overlap, a unit is gathered while the unit before it in its
// stage runs, and all units of a stage while the last unit of the rank's previous stage runs.
// `quantizer` of this and the next function: null without weights that are gathered in 8 bits.
std::unique_ptr<ParamSync> gathered_params(model::ParamStore& params, const DataGroups& groups,
                                           const plan::GatheredParamsOptions& options,
                                           model::Quantizer* quantizer);

// A rank keeps only its own part (ZeRO-3, FSDP; Zhao et al. 2023, "PyTorch FSDP"). Full values of a
// unit are gathered for its forward. They are gathered again for its backward if other units have
// used their memory in between.
std::unique_ptr<ParamSync> sharded_params(model::ParamStore& params, const DataGroups& groups,
                                          const plan::ShardedParamsOptions& options,
                                          model::Quantizer* quantizer);

}  // namespace mtrain::parallel
