#pragma once
/// Pictures of a simulated schedule. The same simulation gives the same bytes.

#include <string>

#include "lib/parallel/simulator.hpp"

namespace llmtrain::parallel {

/// One line per rank, time to the right: "F3 " is F of micro-batch 3 as long as it runs, "." is
/// idle. Capitals are a rank's first, third.. stage, small letters its second, fourth.. The
/// shortest action gets room for its number, unless that takes more than `max_columns` columns of
/// time (0: any number); then actions without room for it are letters alone, or left out below half
/// a column. Of a pair that runs side by side each gets half of the time.
std::string timeline_text(const Schedule& schedule, const Simulation& simulation,
                          int max_columns = 0);

/// A picture that needs nothing else: ranks as rows, a time axis, a legend, and what each action is
/// and when under the pointer.
std::string timeline_svg(const Schedule& schedule, const Simulation& simulation);

/// For ui.perfetto.dev and chrome://tracing ("Trace Event Format"): ranks as threads of one
/// process, messages that take time as threads of another, one for each direction.
std::string timeline_trace(const Schedule& schedule, const MessagePlan& messages,
                           const Simulation& simulation);

}  // namespace llmtrain::parallel
