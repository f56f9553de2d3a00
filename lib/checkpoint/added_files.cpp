#include "checkpoint/added_files.h"

#include "checkpoint/ranks_together.h"

namespace mtrain::checkpoint {

void add_files(const comm::HostCollectives& control, const std::filesystem::path& checkpoint,
               const AddedFiles& files) {
  const bool first = control.rank() == 0;
  try {
    std::string text;
    all_together(control, [&](Meetings& meetings) {
      if (first) meetings.run([&] { text = files.begin(checkpoint); });
    });
    text = control.texts(text)[0];
    all_together(control, [&](Meetings& meetings) {
      meetings.run([&] { files.write(checkpoint, text, [] {}); });
    });
    all_together(control, [&](Meetings& meetings) {
      if (first) meetings.run(files.end);
    });
  } catch (const SaveError& e) {  // on all ranks
    if (first) files.failed(e.message());
  }
}

}  // namespace mtrain::checkpoint
