// Numbers that go wrong on one rank: T9 and T13 of docs/reliability.md.
#include <filesystem>
#include <map>
#include <optional>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/train/metrics.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace {

// Between two saves, so that one of before is there and none of what follows.
constexpr std::int64_t kBadStep = 3;

struct Spoiled {
  std::string layout, site, value, policy, rank;

  bool is_finite() const { return value == "1e30" || value == "0"; }
  /// What is spoiled is gone with the step.
  bool passes() const { return !is_stored(); }
  bool is_stored() const { return site == "parameter" || site.ends_with("state"); }
  bool is_gradient() const { return site.ends_with("gradient"); }
  std::string name() const {
    return fmt::format("{}, {} in {} of rank {}, {}", layout, value, site, rank, policy);
  }
};

Environment number_at(const std::string& site, const std::string& value, const std::string& rank) {
  return {{"NUMBER_SITE", site},
          {"NUMBER_VALUE", value},
          {"NUMBER_RANK", rank},
          {"NUMBER_STEP", std::to_string(kBadStep)}};
}

Overrides with_policy(const Spoiled& of) {
  return {"parallelism=" + of.layout, "resilience.on_non_finite=" + of.policy,
          "resilience.max_skipped_steps=2"};
}

struct Incident {
  std::int64_t step = 0;
  std::string done, where;
};

std::optional<Incident> first_incident(const Job& job) {
  const auto path = job.directory() / "run" / "incidents.jsonl";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const auto incidents = train::read_metrics(path);
  if (incidents.empty()) return std::nullopt;
  const auto* where = incidents.front().find("incident/where");
  return Incident{incidents.front().step,
                  std::get<std::string>(*incidents.front().find("incident/done")),
                  where == nullptr ? "" : std::get<std::string>(*where)};
}

// What was spoiled, or came of it first, with its rank where ranks do not share it.
std::string check_named(const Spoiled& of, const std::string& where) {
  const std::string rank = fmt::format("(rank {})", of.rank);
  const auto names = [&](const std::string& text) { return where.find(text) != where.npos; };
  const bool named = of.is_gradient() ? names("the gradient of model.")
                     : of.is_stored()
                         ? names("the values of model.") && names(rank)
                         : names(of.layout == "{dp: 2}" ? "the loss " + rank : "the loss (");
  return named ? "" : "not finite: " + where;
}

const std::vector<std::string> kSites{"embedding",      "key",      "activation", "loss",
                                      "local gradient", "gradient", "parameter",  "state",
                                      "second state"};

bool can_be_spoiled(const std::string& site, const std::string& value) {
  // Nothing follows from the sum of losses but what is reported.
  if (site == "loss") return value == "nan" || value == "inf";
  // An infinite second moment ends the training of its element, and nothing that is not finite.
  return site != "second state" || value != "inf";
}

std::string rank_of(const std::string& site, const std::string& layout, int number) {
  // What is wrong on one of several ranks that have the same is T13's.
  if (site == "gradient" || (site == "loss" && layout.find("tp") != layout.npos)) return "all";
  const bool is_pipeline = layout.find("pp") != layout.npos;
  if (is_pipeline && site == "embedding") return "0";
  if (is_pipeline && site == "loss") return "1";
  return std::to_string(number % 2);
}

// What every case must come to in which a layout skipped this step, or went back at it.
std::string check_end(const Spoiled& of, const Incident& incident, const Job& job) {
  static std::map<std::string, std::string> ends;
  const std::string print = weights_of(job, Layout::kSteps);
  const std::string key = fmt::format("{} {} {}", of.layout, of.policy, incident.step);
  return print == ends.try_emplace(key, print).first->second
             ? ""
             : "ends otherwise than with another bad number";
}

// No policy is asked about a number that is one: all three end alike, and not as without it.
std::string check_finite(const Spoiled& of, const Job& job) {
  if (job.reported() != Layout::kSteps) return fmt::format("ends at step {}", job.reported());
  if (of.site == "gradient" && of.value == "1e30") {
    double norm = 0;
    for (const auto& record : train::read_metrics(job.directory() / "run" / "metrics.jsonl")) {
      if (record.step != kBadStep) continue;
      norm = record.number(train::metric::kGradNorm).value_or(norm);
    }
    if (norm < 1e29) return fmt::format("the norm of that step is {}", norm);
  }
  static std::map<std::string, std::string> ends, without;
  const std::string print = weights_of(job, Layout::kSteps);
  const std::string key = fmt::format("{} {} {} {}", of.layout, of.site, of.value, of.rank);
  if (print != ends.try_emplace(key, print).first->second) return "ends otherwise by policy";
  if (!without.contains(of.layout)) {
    const Layout layout{.ranks = 2};
    const Job clean(layout, &prepared_job(layout, kBadStep - 1));
    clean.run_or_fail({"parallelism=" + of.layout});
    without[of.layout] = weights_of(clean, Layout::kSteps);
  }
  return print == without.at(of.layout) ? "ends as if nothing had been spoiled" : "";
}

// A run that ends with the step that it skips has the tensors of the step before.
std::string check_skipped(const Spoiled& of) {
  const Layout layout{.ranks = 2, .parallelism = of.layout};
  const Job& before = prepared_job(layout, kBadStep - 1);
  const Job job(layout, &before);
  Overrides overrides = with_policy(of);
  overrides.push_back(fmt::format("training.max_steps={}", kBadStep));
  const ProcessResult result =
      job.run(number_at(of.site, of.value, of.rank), overrides, LLMTRAIN_FAILPOINTS);
  if (result.exit_code != 0) return "the skipped step alone: " + result.output;
  return weights_of(job, kBadStep) == weights_of(before, kBadStep - 1)
             ? ""
             : "the skipped step has changed a tensor";
}

std::string spoil_a_run(const Spoiled& of) {
  const Layout layout{.ranks = 2};
  const Job job(layout, &prepared_job(layout, 2));
  const ProcessResult result =
      job.run(number_at(of.site, of.value, of.rank), with_policy(of), LLMTRAIN_FAILPOINTS);
  if (result.timed_out) return "hangs: " + result.output;
  const std::optional<Incident> incident = first_incident(job);
  const bool seen = incident.has_value();
  // 1e30 is finite, and so may be what follows from it.
  if (of.is_finite() && !seen) {
    return result.exit_code == 0 ? check_finite(of, job) : "fails: " + result.output;
  }
  if (!seen) return "nothing was noticed: " + result.output;
  // A state that is no number spoils what is trained, and no step but a way back mends that.
  const bool ends_well = of.policy == "rollback" || (of.policy == "skip" && of.passes());
  if (result.exit_code != (ends_well ? 0 : 5)) {
    return fmt::format("exit code {}: {}", result.exit_code, result.output);
  }
  const std::string expected = of.policy == "rollback" ? "went back to step 2"
                               : of.policy == "skip"   ? "skipped"
                                                       : "stopped";
  if (incident->done != expected) return "done: " + incident->done;
  if (!of.is_finite()) {
    if (const std::string wrong = check_named(of, incident->where); !wrong.empty()) return wrong;
  }
  if (!ends_well) return job.reported() <= kBadStep + 2 ? "" : "went on";
  if (of.is_finite()) return "";
  if (const std::string wrong = check_end(of, *incident, job); !wrong.empty()) return wrong;
  return of.policy == "skip" ? check_skipped(of) : "";
}

// What a run at a rate far too high comes to: its loss rises, and goes on rising however often it
// goes back.
struct SpikeEnd {
  ProcessResult result;
  std::string incidents;  // step and deed of each
};

SpikeEnd meet_a_spike(const Layout& layout, const std::string& parallelism,
                      const std::string& policy) {
  const Job job(layout, &prepared_job(layout, 2));
  const std::string patience = policy == "rollback" ? ", max_rollbacks: 2" : "";
  SpikeEnd end{job.run({}, {"parallelism=" + parallelism, "optimizer.lr=3",
                            fmt::format("resilience={{on_loss_spike: {}, loss_spike_window: 1, "
                                        "loss_spike_factor: 1.05{}}}",
                                        policy, patience)}),
               ""};
  const auto path = job.directory() / "run" / "incidents.jsonl";
  if (!std::filesystem::exists(path)) return end;
  for (const auto& incident : train::read_metrics(path)) {
    end.incidents += fmt::format("step {}: {}\n", incident.step,
                                 std::get<std::string>(*incident.find("incident/done")));
  }
  return end;
}

// Each rank has other samples, or another part of the model; all must do together, step by step,
// what one rank does alone.
std::string spikes_alike(const std::string& parallelism, const std::string& policy) {
  static std::map<std::string, SpikeEnd> alone;
  if (!alone.contains(policy)) alone[policy] = meet_a_spike({.ranks = 1}, "{}", policy);
  const SpikeEnd& expected = alone.at(policy);
  const SpikeEnd end = meet_a_spike({.ranks = 2}, parallelism, policy);
  if (end.result.timed_out) return "hangs: " + end.result.output;
  const std::string last = policy == "skip" ? "skipped\n" : "stopped\n";
  if (!expected.incidents.ends_with(last)) return "one rank alone: " + expected.result.output;
  if (end.incidents != expected.incidents) {
    return fmt::format("{}one rank alone: {}", end.incidents, expected.incidents);
  }
  return end.result.exit_code == (policy == "skip" ? 0 : 5)
             ? ""
             : fmt::format("exit code {}: {}", end.result.exit_code, end.result.output);
}

std::string turn_over_a_bit(int ranks, const std::string& site, int bit, int rank) {
  const Layout layout{.ranks = ranks};
  const Job job(layout, &prepared_job(layout, 2));
  const ProcessResult result =
      job.run(number_at(site, fmt::format("bit:{}", bit), std::to_string(rank)),
              {"resilience={checksum_every: 3, on_non_finite: skip}"}, LLMTRAIN_FAILPOINTS);
  if (result.timed_out) return "hangs: " + result.output;
  // The last bits of a gradient may change neither the norm's nor any parameter's, and those of a
  // state may be rounded away by the update before anybody compares it.
  constexpr int kRoundedBits = 3;
  const bool may_vanish = site == "gradient" || (site != "parameter" && bit < kRoundedBits);
  if (may_vanish && result.exit_code == 0) {
    const bool harmless = job.fingerprint(Layout::kSteps) == expected_fingerprint(layout);
    return harmless ? "" : "nothing was noticed: " + result.output;
  }
  const auto says = [&](const std::string& text) {
    return result.output.find(text) != std::string::npos;
  };
  const bool named = ranks == 3 ? says(fmt::format("arithmetic of rank {} ", rank))
                                : says("takes a third to tell which");
  const bool where = says("after step 3 model.") || says("step 3 came out otherwise");
  return result.exit_code == 1 && named && where ? "" : result.output;
}

}  // namespace

TEST_CASE("T9 a number that is none, on one rank: all ranks do as the recipe says") {
  Journal journal("T9", 61);  // no multiple of the numbers of values, sites and policies
  int cases = 0;
  for (const std::string layout : {"{dp: 2}", "{dp: 1, tp: 2}", "{dp: 1, pp: 2}"}) {
    for (const std::string policy : {"stop", "skip", "rollback"}) {
      for (const std::string& site : kSites) {
        for (const std::string value : {"nan", "inf", "1e30", "0"}) {
          if (!can_be_spoiled(site, value)) continue;
          const Spoiled of{layout, site, value, policy, rank_of(site, layout, cases)};
          ++cases;
          journal.run(of.name(), [&] { return spoil_a_run(of); });
        }
      }
    }
  }
  CHECK(cases == 297);
  journal.check();
}

TEST_CASE("T9 a loss that rises is met by all ranks as one rank alone meets it") {
  Journal journal("T9-spikes", 4);
  for (const std::string layout : {"{dp: 2}", "{dp: 1, tp: 2}", "{dp: 1, pp: 2}"}) {
    for (const std::string policy : {"stop", "skip", "rollback"}) {
      journal.run(fmt::format("{}, a loss spike, {}", layout, policy),
                  [&] { return spikes_alike(layout, policy); });
    }
  }
  journal.check();
}

TEST_CASE("T13 a bit that one of several replicas has otherwise is found, and named") {
  Journal journal("T13", 199);
  int cases = 0;
  for (const int ranks : {2, 3}) {
    for (const char* site : {"parameter", "state", "second state", "gradient"}) {
      for (int bit = 0; bit < 64; ++bit) {
        const int rank = bit % ranks;
        ++cases;
        journal.run(fmt::format("{} ranks, bit {} of {} of rank {}", ranks, bit, site, rank),
                    [&] { return turn_over_a_bit(ranks, site, bit, rank); });
      }
    }
  }
  CHECK(cases >= 256);
  journal.check();
}

}  // namespace llmtrain::test
