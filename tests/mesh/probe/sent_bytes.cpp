#include "tests/mesh/probe/sent_bytes.hpp"

#include <charconv>
#include <cmath>
#include <dlfcn.h>
#include <map>
#include <sstream>

#include <fmt/ranges.h>

#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain::test {

namespace {

constexpr std::string_view kSent = "sent by MPI: ";

// Within the span of its collective.
void tell(unsigned long long bytes) {
  const trace::Scope span(trace::Kind::io, [&] { return fmt::format("{}{}", kSent, bytes); });
}

struct Bytes {
  double sent = 0, planned = 0;
  double slack = 0;                   // of one rank
  double planned_rows = 0, rows = 0;  // of kToExperts

  double expected() const { return planned_rows == 0 ? planned : planned / planned_rows * rows; }
};
// By "kind on group, bytes of a call"; of rows to experts without the bytes.
using ByCollective = std::map<std::string, Bytes>;

// Its calls have other sizes on each rank.
constexpr std::string_view kToExperts = "all_to_all on experts";

std::string without_size_of_data(std::string_view call) {
  return std::string(call.starts_with(kToExperts) ? kToExperts : call);
}

// "#7 all_reduce on dp, 4 B, at loss" without number and place.
std::string collective_of(std::string_view span) {
  const std::size_t begin = span.find(' ') + 1, end = span.find(" B, at ");
  require(span.starts_with('#') && end != std::string_view::npos, "no collective: {}", span);
  return without_size_of_data(span.substr(begin, end - begin));
}

std::string collective_of(const plan::CollectiveGroup& group) {
  return without_size_of_data(
      fmt::format("{} on {}, {}", to_string(group.kind), group.group, group.bytes));
}

void add_sent(ByCollective& all, const std::vector<trace::Span>& spans) {
  const trace::Span* collective = nullptr;
  for (const trace::Span& span : spans) {
    if (span.kind == trace::Kind::communication) collective = &span;
    if (!span.name.starts_with(kSent)) continue;
    require(collective != nullptr && collective->thread == span.thread &&
                span.end_ns <= collective->end_ns,
            "{} B outside of every collective", span.name);
    double bytes = 0;
    std::from_chars(span.name.data() + kSent.size(), span.name.data() + span.name.size(), bytes);
    all[collective_of(collective->name)].sent += bytes;
  }
}

// Of all ranks, what the members of the same group did together.
ByCollective sum(Communicator& world, const ByCollective& mine,
                 const std::map<std::string, std::string>& members) {
  std::string text;
  for (const auto& [call, bytes] : mine) {
    const std::string group = call.substr(0, call.find(", "));
    const auto found = members.find(group.substr(group.find(" on ") + 4));
    text += fmt::format("{} B of ranks {}\t{:.17g} {:.17g} {:.17g} {:.17g}\n", call,
                        found == members.end() ? "unknown to the plan" : found->second, bytes.sent,
                        bytes.planned, bytes.planned_rows, bytes.rows);
  }
  ByCollective sums;
  for (const std::string& of_rank : world.gather_texts(text, "sent bytes")) {
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t end = line.find('\t');
      Bytes& bytes = sums[line.substr(0, end)];
      std::istringstream numbers(line.substr(end));
      for (double* sum : {&bytes.sent, &bytes.planned, &bytes.planned_rows, &bytes.rows}) {
        double of_one = 0;
        numbers >> of_one;
        *sum += of_one;
      }
    }
  }
  return sums;
}

}  // namespace

RowsToExperts even_rows_to_experts(const plan::PassPlan& step) {
  RowsToExperts all;
  for (const plan::CollectiveGroup& group : step.collectives) {
    if (collective_of(group) == kToExperts) all.planned_bytes += group.sent_bytes();
  }
  return all;
}

SentBytes::SentBytes(const World& world) : several_(world.place().size > 1) {
  if (!several_) return;
  using Watch = void(void (*)(unsigned long long));
  const auto watch = reinterpret_cast<Watch*>(::dlsym(RTLD_DEFAULT, "mesh_test_watch_sends"));
  require(watch != nullptr, "nobody sees what is sent: libmesh_count_sent.so is not loaded");
  watch(&tell);
}

void SentBytes::start() const {
  if (several_) trace::start();
}

std::map<std::string, double> SentBytes::check(Communicator& all, const plan::PassPlan& planned,
                                               const RowsToExperts& to_experts) const {
  if (!several_) return {};
  ByCollective mine;
  add_sent(mine, trace::stop());
  std::map<std::string, std::string> members;
  for (const plan::CollectiveGroup& group : planned.collectives) {
    const std::string call = collective_of(group);
    Bytes& bytes = mine[call];
    if (call == kToExperts) {
      bytes.planned = to_experts.planned_bytes;
      bytes.planned_rows = to_experts.planned_rows;
      bytes.rows = to_experts.rows;
    } else {
      bytes.planned += group.sent_bytes();
      // The elements of a sum that its ranks do not divide are some ranks' only: a plan has the
      // mean there.
      const auto others = static_cast<double>(group.members.size()) - 2;
      if (group.kind == Collective::all_reduce) {
        bytes.slack += others * static_cast<double>(group.count) * sizeof(double);
      }
    }
    members[group.group] = fmt::format("{}", fmt::join(group.members, ", "));
  }
  for (const auto& [call, bytes] : mine) {
    require(call == kToExperts || std::abs(bytes.sent - bytes.planned) < 0.5 + bytes.slack,
            "rank {}: a step sent {} B in {} B, {} B expected", all.rank(), bytes.sent, call,
            bytes.planned);
  }
  for (const auto& [call, bytes] : sum(all, mine, members)) {
    require(std::abs(bytes.sent - bytes.expected()) < 0.5, "a step sent {} B in {}, {} B expected",
            bytes.sent, call, bytes.expected());
  }
  std::map<std::string, double> by_group;
  for (const auto& [call, bytes] : mine) {
    if (bytes.sent > 0) by_group[call.substr(0, call.find(", "))] += bytes.sent;
  }
  return by_group;
}

}  // namespace llmtrain::test
