// A disk of optimizer states that fails (offload.optimizer: nvme).
#include <regex>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/reliability/io_fault.hpp"

namespace llmtrain::test {

namespace {

const Overrides kOffload{"offload={optimizer: nvme, buffer: 256KiB, path: fast}"};

/// The n-th call of that kind on the file of states.
Environment state_fault(const char* call, int n, const char* what) {
  return {{"LD_PRELOAD", LLMTRAIN_IO_FAULTS}, {"LLMTRAIN_IO_URING", "off"},
          {"IO_FAULT_UNDER", "/fast/"},       {"IO_FAULT_CALLS", call},
          {"IO_FAULT_AT", std::to_string(n)}, {"IO_FAULT_DO", what}};
}

/// Without the metrics of memory, which is what differs.
std::string outcome(const std::string& fingerprint) {
  static const std::regex kMemory(R"(,"memory/[a-z_]+":[0-9]+)");
  return std::regex_replace(fingerprint, kMemory, "");
}

}  // namespace

TEST_CASE("an error in the middle of an update ends the run, and nothing of that step is saved") {
  struct Fault {
    const char *call, *what, *says;
  };
  for (const Layout& layout : {Layout{1, false}, {1, true}, {2, false, "{zero: 2}"}}) {
    for (const Fault& fault : {Fault{"pwrite", "EIO", "cannot write at byte"},
                               Fault{"pwrite", "ENOSPC", "choose another offload.path"},
                               Fault{"read", "EIO", "cannot read at byte"}}) {
      int ended = 0;
      for (const int n : {1, 40}) {
        CAPTURE(layout.name());
        CAPTURE(fault.what);
        CAPTURE(n);
        const Job job(layout, &prepared_job(layout, 2));
        Environment environment = state_fault(fault.call, n, fault.what);
        environment.emplace_back("IO_FAULT_RANK", "0");
        const ProcessResult result = job.run(environment, kOffload);
        if (result.exit_code == 0) continue;  // a run does not make so many calls
        ++ended;
        CAPTURE(result.output);
        CHECK(result.exit_code == 7);
        CHECK(result.output.find(fault.says) != std::string::npos);
        CHECK(result.output.find("fast (a file without a name there)") != std::string::npos);
        const ProcessResult rest = job.run({}, n % 2 == 0 ? kOffload : Overrides{});
        REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
        CHECK(rest.output.find("resumed from step") != std::string::npos);
        CHECK(outcome(job.fingerprint(Layout::kSteps)) == outcome(expected_fingerprint(layout)));
      }
      CHECK(ended == 2);
    }
  }
}

TEST_CASE("a parameter that cannot be read in the middle of a step ends the run with its reason") {
  const Overrides parameters{
      "offload={optimizer: nvme, parameters: nvme, buffer: 256KiB, path: fast}"};
  for (const Layout& layout : {Layout{1, false}, {2, false, "{zero: 3}"}}) {
    int ended = 0;
    for (const int n : {30, 160}) {
      CAPTURE(layout.name());
      CAPTURE(n);
      const Job job(layout, &prepared_job(layout, 2));
      Environment environment = state_fault("read", n, "EIO");
      environment.emplace_back("IO_FAULT_RANK", "0");
      const ProcessResult result = job.run(environment, parameters);
      if (result.exit_code == 0) continue;  // a run does not make so many calls
      ++ended;
      CAPTURE(result.output);
      CHECK(result.exit_code == 7);
      CHECK(result.output.find("cannot read at byte") != std::string::npos);
      const ProcessResult rest = job.run({}, n % 2 == 0 ? parameters : Overrides{});
      REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
      CHECK(rest.output.find("resumed from step") != std::string::npos);
      CHECK(outcome(job.fingerprint(Layout::kSteps)) == outcome(expected_fingerprint(layout)));
    }
    CHECK(ended == 2);
  }
}

TEST_CASE("reads and writes that are interrupted or late change nothing") {
  for (const char* what : {"EINTR", "delay:1"}) {
    for (const char* call : {"pwrite", "read"}) {
      const Layout layout{1, false};
      const Job job(layout, &prepared_job(layout, 2));
      const bool all = std::string(what) != "EINTR";
      const ProcessResult result = job.run(state_fault(call, all ? 0 : 9, what), kOffload);
      REQUIRE_MESSAGE(result.exit_code == 0, result.output);
      CHECK(outcome(job.fingerprint(Layout::kSteps)) == outcome(expected_fingerprint(layout)));
    }
  }
}

}  // namespace llmtrain::test
