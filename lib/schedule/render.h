// Shows schedules as text, tables and pictures.
#pragma once
#include <string>

#include "schedule/simulator.h"

namespace mtrain::schedule {

// Draws a row for each rank, with time from left to right and `.` where a rank waits. Rows are cut
// into parts of at most `columns` (0: not cut). The shortest action is as wide as its name.
// Exchanges have a row of their own below their rank's: `f` in forwards, `b` in backwards.
std::string schedule_text(const Schedule& schedule, const Timeline& timeline, int64_t columns);

// Lists what ranks compute as pp_schedule_csv reads it: a row per rank, cells such as 2F0.
std::string schedule_csv(const Schedule& schedule);

// Draws a picture with a row for each rank, a time axis and a legend. Each box shows the
// micro-batch and the stage. Exchanges and the timeline's lanes are below their rank's boxes. A
// picture is at most kWidestPicture pixels wide; a longer timeline continues below, with the rows
// of all ranks.
std::string schedule_svg(const Schedule& schedule, const Timeline& timeline);
inline constexpr double kWidestPicture = 1600;

// Returns a page with the same picture in one row, which the reader can zoom. It needs no network.
std::string schedule_html(const Schedule& schedule, const Timeline& timeline);

// Returns the time of the timeline's shortest action, but at least 1/4000 of the step. It is the
// unit of a picture's scale.
double shortest_action(const Timeline& timeline);

bool has_exchanges(const Timeline& timeline);

}  // namespace mtrain::schedule
