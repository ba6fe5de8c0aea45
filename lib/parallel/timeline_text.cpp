#include <algorithm>
#include <cctype>
#include <cmath>

#include "lib/base/require.hpp"
#include "lib/parallel/timeline.hpp"
#include "lib/parallel/timeline_cells.hpp"

namespace llmtrain::parallel {

namespace {

std::string cell_text(const TimelineCell& cell, std::size_t columns) {
  const char kind = letter(cell.action.kind);
  const char cased = cell.chunk % 2 == 0
                         ? kind
                         : static_cast<char>(std::tolower(static_cast<unsigned char>(kind)));
  std::string text = fmt::format("{}{}", cased, cell.action.micro_batch);
  if (text.size() > columns) text.resize(std::min<std::size_t>(columns, 1));
  text.resize(columns, ' ');
  return text;
}

}  // namespace

std::string timeline_text(const Schedule& schedule, const Simulation& simulation, int max_columns) {
  const std::vector<TimelineCell> cells = timeline_cells(schedule, simulation);
  const double shortest = shortest_action(cells);
  if (shortest == 0) return "";
  const auto label = fmt::formatted_size("F{} ", schedule.shape.num_micro_batches - 1);
  double columns_per_second = static_cast<double>(label) / shortest;
  if (max_columns > 0) {
    columns_per_second = std::min(columns_per_second, max_columns / simulation.seconds);
  }
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::llround(time * columns_per_second));
  };
  std::vector<std::string> rows(schedule.ranks.size(),
                                std::string(column(simulation.seconds), '.'));
  for (const TimelineCell& cell : cells) {
    const std::size_t begin = column(cell.span.begin), width = column(cell.span.end) - begin;
    rows[static_cast<std::size_t>(cell.row)].replace(begin, width, cell_text(cell, width));
  }
  const auto digits = fmt::formatted_size("{}", rows.size() - 1);
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    text += fmt::format("rank {:<{}} |{}|\n", r, digits, rows[r]);
  }
  return text;
}

}  // namespace llmtrain::parallel
