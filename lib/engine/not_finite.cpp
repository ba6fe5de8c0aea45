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

bool is_finite(const Tensor& tensor) {
  if (!tensor.defined()) return true;
  const View& values = tensor.view();
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

/// "the gradient of a and 2 more"; empty where `tensor_of` all parameters is finite.
std::string first_of(const ParameterStore& store, std::string_view what,
                     const std::function<Tensor(const Parameter&)>& tensor_of) {
  std::string first;
  int more = 0;
  for (const Parameter* p : store.local()) {
    if (p->own_slice().count == 0 || is_finite(tensor_of(*p))) continue;
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
  found.push_back(first_of(store, "the gradient", [](const Parameter& p) { return p.own_grad(); }));
  found.push_back(
      first_of(store, "the values", [](const Parameter& p) { return p.own_compute(); }));
  std::erase(found, "");
  return found;
}

}  // namespace llmtrain::engine
