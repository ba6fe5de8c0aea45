#include "lib/engine/not_finite.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/base/require.hpp"

namespace llmtrain::engine {

namespace {

template <class T>
bool all_finite(const View& values) {
  const T* begin = values.as<T>();
  return std::all_of(begin, begin + values.numel(), [](T x) {
    if constexpr (std::is_floating_point_v<T>)
      return std::isfinite(x);
    else
      return std::isfinite(to_float(x));
  });
}

bool is_finite(const View& values) {
  if (!values.defined()) return true;
  switch (values.dtype) {
    case DType::f64:
      return all_finite<double>(values);
    case DType::f32:
      return all_finite<float>(values);
    case DType::bf16:
      return all_finite<bf16>(values);
    case DType::f16:
      return all_finite<f16>(values);
    default:
      return true;
  }
}

/// The own slice of the compute copy, wherever it is.
bool has_finite_values(const ParameterStore& store, const Parameter& p) {
  if (!p.copy_is_elsewhere()) return is_finite(p.own_compute().view());
  constexpr std::int64_t kPart = 1 << 20;
  std::vector<std::byte> values(kPart * size_of(p.compute_dtype()));
  const std::int64_t all = p.own_slice().count;
  for (std::int64_t first = 0; first < all; first += kPart) {
    const std::int64_t count = std::min(kPart, all - first);
    const std::uint64_t bytes = static_cast<std::uint64_t>(count) * size_of(p.compute_dtype());
    store.read_copy(p, first, std::span(values).first(bytes));
    if (!is_finite(View{.data = values.data(),
                        .dtype = p.compute_dtype(),
                        .shape = {count},
                        .row_stride = count})) {
      return false;
    }
  }
  return true;
}

/// "the gradient of a and 2 more"; empty where all parameters' are finite.
std::string first_of(const ParameterStore& store, std::string_view what,
                     const std::function<bool(const Parameter&)>& is_finite_of) {
  std::string first;
  int more = 0;
  for (const Parameter* p : store.local()) {
    if (p->own_slice().count == 0 || is_finite_of(*p)) continue;
    if (first.empty()) {
      first = p->name();
    } else {
      ++more;
    }
  }
  if (first.empty()) return "";
  return fmt::format("{} of {}{}", what, first, more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

std::vector<std::string> what_is_not_finite(Engine& engine) {
  if (engine.device().kind() != DeviceKind::cpu) return {};
  require(engine.steps_in_flight() == 0, "looking at the gradients of a step in flight");
  std::vector<std::string> found;
  if (!std::isfinite(engine.own_loss())) found.emplace_back("the loss");
  const ParameterStore& store = engine.parameters();
  found.push_back(first_of(store, "the gradient",
                           [](const Parameter& p) { return is_finite(p.own_grad().view()); }));
  found.push_back(first_of(store, "the values",
                           [&](const Parameter& p) { return has_finite_values(store, p); }));
  std::erase(found, "");
  return found;
}

}  // namespace llmtrain::engine
