#pragma once
/// What the ranks of a run tell each other so that all of them go on alike. Rank 0 writes the files
/// of a run and talks to people; its clock is the run's.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/comm/world.hpp"

namespace llmtrain::train {

/// Everything but is_first(), world() and group() is collective over the job.
class Peers {
 public:
  /// CommError, naming a rank and what it has, unless all have this recipe and run the same files.
  Peers(World& world, std::string_view recipe);
  /// The same of what is known later: the kind of device, and the plugin that it needs.
  void check_same_program(std::string_view device) const;
  /// The same of what they train on.
  void check_same_data(std::string_view fingerprint, std::string_view held_out) const;

  bool is_first() const { return world_->place().rank == 0; }
  World& world() const { return *world_; }

  /// Rank 0's.
  template <class T>
  T of_first(const T& mine, std::string_view site) const {
    return all_->gather_values(mine, site).front();
  }
  std::string text_of_first(std::string_view mine, std::string_view site) const {
    return text_of(0, mine, site);
  }
  std::string text_of(int rank, std::string_view mine, std::string_view site) const {
    return all_->share_text(mine, rank, site);
  }
  /// Everybody's, by rank.
  template <class T>
  std::vector<T> of_all(const T& mine, std::string_view site) const {
    return all_->gather_values(mine, site);
  }
  std::vector<std::string> texts_of_all(std::string_view mine, std::string_view site) const {
    return all_->gather_texts(mine, site);
  }
  /// Whether it is true on all ranks.
  bool all_of(bool mine, std::string_view site) const {
    const std::vector<int> all = of_all(mine ? 1 : 0, site);
    return *std::min_element(all.begin(), all.end()) == 1;
  }
  /// `make` by rank 0, and then by the others, who find what it has left in files, however long
  /// that takes.
  template <class Make>
  auto first_then_others(const Make& make, std::string_view site) const {
    if (is_first()) {
      auto made = make();
      wait_for_first(site);  // the others have nothing else to do
      return made;
    }
    wait_for_first(site);
    return make();
  }
  /// A barrier to which rank 0 may come hours after the others, who only miss it when it is gone.
  void wait_for_first(std::string_view site) const {
    std::optional<World::LongWait> patience;
    if (!is_first()) patience.emplace(*world_);
    all_->barrier(site);
  }
  void barrier(std::string_view site) const { all_->barrier(site); }
  Communicator& group() const { return *all_; }

 private:
  void check_same_recipe(std::string_view recipe) const;

  World* world_;
  std::unique_ptr<Communicator> all_;
};

/// Ranks were not started alike: another program, recipe or data. Each of them knows it.
class RanksDiffer : public CommError {
  using CommError::CommError;
};

/// Says for whom this rank waited, and in what, and ends all of them: a rank is lost.
[[noreturn]] void end_all_but_lost(World& world, std::string_view message);

/// Runs `body` as one rank of a job. An error is logged and ends all ranks with its exit code;
/// rank 0, where most errors are everybody's, is given the first word, but where a rank is lost
/// every other says for whom it waits. A process of its own throws as ever.
ExitCode run_as_rank(const std::function<ExitCode(World&)>& body);

}  // namespace llmtrain::train
