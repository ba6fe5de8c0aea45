#include "tests/mesh/probe/sent_by_textbook.hpp"

#include <cmath>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "lib/base/require.hpp"

namespace llmtrain::test {

namespace {

struct Bytes {
  double sent = 0, expected = 0;
};

int index_of(const MeshShape& mesh, int rank, Axis axis) {
  return coordinate_of(mesh, rank)[static_cast<int>(axis)];
}

// "all_gather on dp*sp at tp 1, pp 0": whose sums are compared.
std::string place_of(std::string_view call, int tp, int pp) {
  const std::string_view group = call.substr(call.find(" on ") + 4);
  const bool is_sum = call.starts_with(to_string(Collective::all_reduce));
  const auto place = [&](std::string_view axis, int index) {
    const bool is_along = is_sum && group.find(axis) != std::string_view::npos;
    return is_along ? std::string("all") : std::to_string(index);
  };
  return fmt::format("{} at tp {}, pp {}", call, place("tp", tp), place("pp", pp));
}

}  // namespace

SentByTextbook::SentByTextbook(const engine::EngineOptions& options, const MeshShape& mesh,
                               int rank, std::int64_t samples_per_step)
    : run_{options, mesh,
           static_cast<int>(samples_per_step / options.micro_batch_size / mesh[Axis::dp])},
      tp_(index_of(mesh, rank, Axis::tp)),
      pp_(index_of(mesh, rank, Axis::pp)) {}

void SentByTextbook::check(Communicator& all, const std::map<std::string, double>& sent,
                           std::vector<double> rows_elsewhere) {
  run_.rows_elsewhere = std::move(rows_elsewhere);
  std::map<std::string, Bytes> mine;
  for (const auto& [call, bytes] : sent) mine[place_of(call, tp_, pp_)].sent += bytes;
  for (const auto& [call, bytes] : textbook_volumes(run_, tp_, pp_)) {
    const std::string name = fmt::format("{} on {}", to_string(call.first), call.second);
    mine[place_of(name, tp_, pp_)].expected += bytes;
  }
  std::string text;
  for (const auto& [place, bytes] : mine) {
    text += fmt::format("{}\t{:.17g} {:.17g}\n", place, bytes.sent, bytes.expected);
  }
  std::map<std::string, Bytes> sums;
  for (const std::string& of_rank : all.gather_texts(text, "textbook")) {
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t end = line.find('\t');
      std::istringstream numbers(line.substr(end));
      double bytes = 0, expected = 0;
      numbers >> bytes >> expected;
      Bytes& sum = sums[line.substr(0, end)];
      sum.sent += bytes;
      sum.expected += expected;
    }
  }
  std::string problems;
  for (const auto& [place, bytes] : sums) {
    if (std::abs(bytes.sent - bytes.expected) < 0.5) continue;
    problems +=
        fmt::format("\n{}: {} B by the textbook, {} B sent", place, bytes.expected, bytes.sent);
  }
  require(problems.empty(), "a step sent what no paper asks for:{}", problems);
  ++steps_;
}

}  // namespace llmtrain::test
