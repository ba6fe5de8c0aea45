#include "lib/train/replica_check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"
#include "lib/engine/replica_prints.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

namespace {

using engine::ReplicaPrint;

/// Some of a rank's tensors as one pair: ranks with the same places must have the same content.
struct Claim {
  std::uint64_t places = 0, contents = 0;
};

// Ranks that hold all the same; those that hold the same parts of what products read, whatever
// ZeRO divides; and those that share only what nobody divides, as norms over `tp`.
constexpr std::array<bool (*)(const ReplicaPrint&), 3> kSelections{
    [](const ReplicaPrint&) { return true; }, [](const ReplicaPrint& of) { return of.copy; },
    [](const ReplicaPrint& of) { return of.copy && of.whole; }};
using Claims = std::array<Claim, kSelections.size()>;

Claims claims_of(const std::vector<ReplicaPrint>& prints) {
  Claims claims;
  for (std::size_t i = 0; i < kSelections.size(); ++i) {
    Hasher128 places, contents;
    bool any = false;
    for (const ReplicaPrint& print : prints) {
      if (!kSelections[i](print)) continue;
      any = true;
      places.update_value(print.place);
      contents.update_value(print.content);
    }
    if (any) claims[i] = {places.digest().low | 1, contents.digest().low};
  }
  return claims;
}

/// Ranks that should agree and do not.
struct Disagreement {
  std::vector<int> same;  // what most have, or the first of as many
  std::vector<int> odd;   // something else
  std::size_t selection = 0;
  bool majority() const { return same.size() > odd.size(); }
};

using RanksByContent = std::map<std::uint64_t, std::vector<int>>;

std::optional<Disagreement> disagreement(const RanksByContent& contents) {
  if (contents.size() < 2) return std::nullopt;
  const auto most =
      std::ranges::max_element(contents, {}, [](const auto& of) { return of.second.size(); });
  Disagreement found{.same = most->second, .odd = {}};
  for (const auto& [content, ranks] : contents) {
    if (content != most->first) found.odd.insert(found.odd.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(found.odd);
  return found;
}

std::optional<Disagreement> disagreement(const std::vector<Claims>& all) {
  for (std::size_t i = kSelections.size(); i-- > 0;) {  // the smallest selection says most
    std::map<std::uint64_t, RanksByContent> by_place;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const Claim& claim = all[rank][i];
      if (claim.places == 0) continue;
      by_place[claim.places][claim.contents].push_back(static_cast<int>(rank));
    }
    for (const auto& [places, contents] : by_place) {
      if (auto found = disagreement(contents)) {
        found->selection = i;
        return found;
      }
    }
  }
  return std::nullopt;
}

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 8;
  const std::span shown = std::span(ranks).first(std::min(kShown, ranks.size()));
  std::string text =
      fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(shown, ", "));
  if (shown.size() < ranks.size()) text += fmt::format(" and {} more", ranks.size() - shown.size());
  return text;
}

// Collective: only a machine knows its name and kind.
std::string advice(const Disagreement& found, const Peers& peers) {
  const plan::MachineFacts facts = plan::machine_facts();
  const std::vector<std::string> hosts = peers.texts_of_all(facts.host, "hosts");
  const std::vector<std::string> kinds = peers.texts_of_all(facts.instruction_set, "processors");
  std::set<std::string> odd, all_kinds(kinds.begin(), kinds.end());
  for (const int rank : found.odd) odd.insert(hosts[static_cast<std::size_t>(rank)]);
  if (all_kinds.size() > 1) {
    return fmt::format(
        "processors have different instruction sets ({}), which round differently: "
        "run on machines of one kind",
        fmt::join(all_kinds, ", "));
  }
  const std::string earlier =
      "Checkpoints of earlier steps are what they were: the next start goes on from the newest";
  if (!found.majority()) {
    return "one of them cannot be trusted, and it takes a third to tell which. " + earlier;
  }
  return fmt::format(
      "memory or arithmetic of {}{} ({}) cannot be trusted: leave the machine out. {}",
      found.odd.size() > 1 ? "one of " : "", ranks_text(found.odd), fmt::join(odd, ", "), earlier);
}

}  // namespace

namespace {

/// Of ranks that have something otherwise than others: which, and what.
struct Difference {
  Disagreement of;
  std::string tensor;
};

/// Collective.
std::optional<Difference> difference_of(engine::Engine& engine, const Peers& peers) {
  if (peers.world().place().size == 1) return std::nullopt;
  const trace::Scope span(trace::Kind::action, "check of replicas");
  const std::vector<ReplicaPrint> prints = engine::replica_prints(engine);
  const auto found = disagreement(peers.of_all(claims_of(prints), "checksums of replicas"));
  if (!found) return std::nullopt;
  const auto lines_of = [&](int rank) {
    std::string text;
    for (const ReplicaPrint& print : prints) {
      if (!kSelections[found->selection](print)) continue;
      text += fmt::format("{} {:016x}\n", print.name, print.content);
    }
    return peers.text_of(rank, text, "tensors of a replica");
  };
  const std::string same = lines_of(found->same.front()), odd = lines_of(found->odd.front());
  const auto differs = std::ranges::mismatch(same, odd).in2;
  const auto line = std::find(std::make_reverse_iterator(differs), odd.rend(), '\n').base();
  return Difference{*found, std::string(line, std::find(line, odd.end(), ' '))};
}

}  // namespace

void check_replicas(engine::Engine& engine, const Peers& peers, std::int64_t step) {
  const auto found = difference_of(engine, peers);
  if (!found) return;
  fail<DeviceError>("after step {} {} differs between {} and {}, which must have the same bits: {}",
                    step, found->tensor, ranks_text(found->of.odd), ranks_text(found->of.same),
                    advice(found->of, peers));
}

void check_loaded_alike(engine::Engine& engine, const Peers& peers, std::int64_t step) {
  const auto found = difference_of(engine, peers);
  if (!found) return;
  fail<StorageError>(
      "of the checkpoint of step {} {} came to {} otherwise than to {}, and every byte of it was "
      "checked: what one of them reads is not what the storage has. Nothing was changed; run "
      "again, "
      "and leave its machine out if that comes back",
      step, found->tensor, ranks_text(found->of.odd), ranks_text(found->of.same));
}

void check_same_outcome(const std::vector<StepSummary>& all, const Peers& peers,
                        std::int64_t step) {
  RanksByContent contents;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto bits = [](double x) {
      return std::isnan(x) ? ~0ull : std::bit_cast<std::uint64_t>(x);
    };
    const std::array of{bits(all[rank].loss), bits(all[rank].grad_norm), bits(all[rank].applied)};
    contents[hash64(std::as_bytes(std::span(of)))].push_back(static_cast<int>(rank));
  }
  const auto found = disagreement(contents);
  if (!found) return;
  const auto text = [&](const std::vector<int>& ranks) {
    const StepSummary& of = all[static_cast<std::size_t>(ranks.front())];
    return fmt::format("{} (loss {}, gradient norm {}, {})", ranks_text(ranks), of.loss,
                       of.grad_norm, of.applied != 0 ? "applied" : "not applied");
  };
  fail<DeviceError>("step {} came out otherwise on {} than on {}: {}", step, text(found->odd),
                    text(found->same), advice(*found, peers));
}

}  // namespace llmtrain::train
