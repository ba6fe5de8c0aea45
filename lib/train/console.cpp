#include "lib/train/console.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lib/base/log.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::train {

namespace {

constexpr std::string_view kClearLine = "\r\x1b[2K";

std::string step_cell(std::int64_t step, std::int64_t total_steps) {
  if (total_steps == 0) return fmt::format("{:>7}", step);
  const std::string total = std::to_string(total_steps);
  return fmt::format("{:>{}}/{}", step, std::max<std::size_t>(total.size(), 4), total);
}

std::string loss_text(double loss) {
  if (std::isnan(loss)) return "nan";  // whatever its sign bit
  return std::abs(loss) < 1e4 ? fmt::format("{:.4f}", loss) : fmt::format("{:.3e}", loss);
}

std::string count_text(double count) {
  return std::isfinite(count) ? format_count(count) : fmt::format("{}", count);
}

std::string eta_text(double seconds) {
  return seconds >= 0 && seconds < 1e9 ? format_duration(seconds) : "-";
}

/// The number's text, or "-".
template <class Format>
std::string cell(const StepRecord& record, std::string_view key, Format format) {
  const std::optional<double> value = record.number(key);
  return value ? format(*value) : "-";
}

int terminal_width(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

bool is_terminal(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return ::isatty(::fileno(out)) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

std::string step_titles(std::int64_t total_steps) {
  return fmt::format("{:>{}}{:>11}{:>11}{:>11}{:>10}{:>8}{:>12}{:>10}", "step",
                     step_cell(0, total_steps).size(), "loss", "grad-norm", "lr", "tokens/s", "MFU",
                     "memory", "ETA");
}

std::string step_line(const StepRecord& record, std::int64_t total_steps) {
  const auto scientific = [](double x) { return fmt::format("{:.3e}", x); };
  const auto percent = [](double x) { return fmt::format("{:.1f}%", 100 * x); };
  const auto bytes = [](double x) {
    return format_bytes(x > 0 && x < 0x1p63 ? static_cast<std::uint64_t>(x) : 0);
  };
  return fmt::format(
      "{}{:>11}{:>11}{:>11}{:>10}{:>8}{:>12}{:>10}", step_cell(record.step, total_steps),
      cell(record, metric::kLoss, loss_text), cell(record, metric::kGradNorm, loss_text),
      cell(record, metric::kLearningRate, scientific),
      cell(record, metric::kTokensPerSecond, count_text), cell(record, metric::kMfu, percent),
      cell(record, metric::kPeakBytes, bytes), cell(record, metric::kEtaSeconds, eta_text));
}

std::string eval_line(const StepRecord& record, std::int64_t total_steps) {
  std::string line = fmt::format("{}{:>11}", step_cell(record.step, total_steps),
                                 cell(record, metric::kEvalLoss, loss_text));
  line += "  evaluation";
  if (const auto perplexity = record.number(metric::kEvalPerplexity)) {
    line += fmt::format(", perplexity {}", loss_text(*perplexity));
  }
  if (const auto bits = record.number(metric::kEvalBitsPerByte)) {
    line += fmt::format(", {:.4f} bits per byte", *bits);
  }
  return line;
}

std::string progress_bar(double fraction, std::string_view note, int width) {
  fraction = std::isnan(fraction) ? 0 : std::clamp(fraction, 0.0, 1.0);
  // Rounded down: 100% means done.
  const std::string tail = fmt::format("{:>4}%  {}", static_cast<int>(100 * fraction), note);
  const int cells = std::min(width - static_cast<int>(tail.size()) - 2, 40);
  if (cells < 1) return tail.substr(0, static_cast<std::size_t>(std::max(width, 0)));
  const int filled = static_cast<int>(fraction * cells);
  return fmt::format("[{:#>{}}{:.>{}}]{}", "", filled, "", cells - filled, tail);
}

Console::Console(ConsoleOptions options) : options_(std::move(options)) {}

Console::~Console() { draw(""); }

void Console::header() {
  if (!options_.mfu_formula.empty()) print_line("MFU = " + options_.mfu_formula);
  print_line(step_titles(options_.total_steps));
}

void Console::record(const StepRecord& record) {
  if (record.find(metric::kLoss) != nullptr) print_line(step_line(record, options_.total_steps));
  if (record.find(metric::kEvalLoss) != nullptr) {
    print_line(eval_line(record, options_.total_steps));
  }
}

void Console::message(std::string_view line) { print_line(line); }

void Console::progress(double fraction, std::string_view note) {
  if (!options_.progress_bar) return;
  // One column stays free: a terminal wraps when its last column is written.
  draw(progress_bar(fraction, note, terminal_width(options_.out) - 1));
}

void Console::print_line(std::string_view line) {
  const std::string bar = bar_;
  draw("");
  write(fmt::format("{}\n", line));
  draw(bar);
}

void Console::draw(std::string_view bar) {
  if (bar == bar_) return;
  write(fmt::format("{}{}", kClearLine, bar));
  bar_ = bar;
}

void Console::write(std::string_view text) {
  if (lost_) return;
  lost_ = std::fwrite(text.data(), 1, text.size(), options_.out) < text.size() ||
          std::fflush(options_.out) != 0;
  if (lost_) {
    log::warning("nothing more is printed: {}; the run goes on, metrics.jsonl has all steps",
                 std::strerror(errno));
  }
}

}  // namespace llmtrain::train
