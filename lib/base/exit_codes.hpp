#pragma once
/// What each exit code tells a user: the text of `llmtrain --help`, and of README.md.

#include <array>
#include <string_view>

#include "lib/base/error.hpp"

namespace llmtrain {

struct ExitCodeRow {
  ExitCode code;
  std::string_view meaning;
};

inline constexpr std::array kExitCodes{
    ExitCodeRow{ExitCode::done, "done"},
    ExitCodeRow{ExitCode::runtime,
                "a device, another program or an invariant failed; or `tokenizer diff` found a "
                "difference"},
    ExitCodeRow{ExitCode::recipe, "the recipe or the command line is wrong: edit it"},
    ExitCodeRow{ExitCode::does_not_fit, "the plan needs more memory or disk than there is"},
    ExitCodeRow{ExitCode::invalid_data, "text, tokenizer, weights or checkpoint cannot be used"},
    ExitCodeRow{ExitCode::numeric, "loss or gradients are not finite, and the recipe says stop"},
    ExitCodeRow{ExitCode::peer_lost, "another process of the run is lost, or does not fit it"},
    ExitCodeRow{ExitCode::storage,
                "files cannot be read or written: storage is full, fails or holds others"},
    ExitCodeRow{ExitCode::preempted, "stopped by a signal and saved: start it again to go on"},
    ExitCodeRow{ExitCode::no_progress, "restarts without progress: do not start again"},
};

}  // namespace llmtrain
