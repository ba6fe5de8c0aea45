#pragma once
/// Spans of time on the threads of this process, for a picture of what it does. Where nobody looks,
/// a span costs a load and a tick (activity.hpp).

#include <atomic>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/activity.hpp"

namespace llmtrain::trace {

enum class Kind : std::uint8_t {
  phase,          // "step 12", "evaluation": what the process is at
  action,         // a stage's work on a micro-batch, the update
  compute,        // a kernel; on a GPU its launch
  communication,  // a collective or a message, with waiting for the others in it
  wait,           // for a collective, or for a device
  io              // reading samples, writing checkpoints
};
inline constexpr int kNumKinds = 6;
std::string_view to_string(Kind kind);

struct Span {
  Kind kind = Kind::phase;
  std::uint32_t thread = 0;  // from 0, in the order of their first spans
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;  // since start()
};

/// Begins to keep spans; those that were kept are forgotten.
void start();
/// Ends it. The spans that have ended, by thread, and in the order of their begins with the outer
/// of two that begin together first.
std::vector<Span> stop();

namespace detail {
extern std::atomic<bool> g_on;
std::int64_t now_ns();
void keep(Kind kind, std::string name, std::int64_t begin_ns);
}  // namespace detail

inline bool is_on() { return detail::g_on.load(std::memory_order_relaxed); }

/// A span from here to the end of the scope.
class Scope {
 public:
  Scope(Kind kind, std::string_view name) : kind_(kind) {
    activity::tick();
    if (is_on()) begin(std::string(name));
  }
  /// `name` makes it, where somebody looks.
  template <std::invocable Name>
  Scope(Kind kind, const Name& name) : kind_(kind) {
    activity::tick();
    if (is_on()) begin(name());
  }
  ~Scope() {
    if (begin_ns_ >= 0) detail::keep(kind_, std::move(name_), begin_ns_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  void begin(std::string name) {
    name_ = std::move(name);
    begin_ns_ = detail::now_ns();
  }

  Kind kind_;
  std::int64_t begin_ns_ = -1;
  std::string name_;
};

/// Seconds of each kind on one thread, of which each moment counts for the innermost span. Spans of
/// `phase` and `action` only say what the others were for.
struct SelfTimes {
  double seconds[kNumKinds] = {};
  double of(Kind kind) const { return seconds[static_cast<int>(kind)]; }
};
/// `spans` as stop() gives them.
SelfTimes self_times(const std::vector<Span>& spans, std::uint32_t thread);

}  // namespace llmtrain::trace
