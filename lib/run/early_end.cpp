#include "run/early_end.h"

#include <utility>

#include "launch/end_signals.h"
#include "observe/progress.h"
#include "run/rank_pulse.h"

namespace mtrain::run {

EarlyEnd::EarlyEnd(observe::ProgressLine* screen, bool saves, std::shared_ptr<Pulse> pulse)
    : saves_(saves), pulse_(std::move(pulse)), signals_([this, screen] {
        if (screen)
          screen->tell(answer_to_signal(launch::name_of(signals_.signal()), doing_, step_, saves_));
      }) {}

void EarlyEnd::at(Doing doing, int64_t step) {
  step_ = step;
  doing_ = doing;
  show_activity(*pulse_, doing, step);
}

void EarlyEnd::during(Doing doing, const std::function<void()>& work) {
  const Doing before = doing_;
  at(doing, step_);
  work();
  at(before, step_);
}

void EarlyEnd::progress(int64_t saved, int64_t steps_done,
                        const std::filesystem::path& checkpoint) {
  signals_.set_unsaved(unsaved_text(saved, steps_done, checkpoint));
}

}  // namespace mtrain::run
