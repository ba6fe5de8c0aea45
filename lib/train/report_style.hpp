#pragma once
/// The fixed parts of the HTML report.

#include <string_view>

namespace llmtrain::train {

extern const std::string_view kReportStyle;   // CSS
extern const std::string_view kReportScript;  // JavaScript: what the pointer shows on a chart

}  // namespace llmtrain::train
