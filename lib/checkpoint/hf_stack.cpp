#include "lib/checkpoint/hf_stack.hpp"

#include <set>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

Dims HfStack::file_shape() const {
  if (is_vector) return {out};
  return tensor->transposed ? Dims{in, out} : Dims{out, in};
}

std::vector<HfStack> hf_stacks(const ParameterStore& store, const HfLayout& layout) {
  std::vector<HfStack> stacks;
  std::set<const Parameter*> seen;
  for (const HfTensor& tensor : layout.tensors) {
    HfStack& stack = stacks.emplace_back();
    stack.tensor = &tensor;
    for (const std::string& name : tensor.members) {
      const Parameter& p = store.find(name);
      require(seen.insert(&p).second, "{} is twice in a layout", name);
      require(p.global_shape().rank() <= 2, "{}: a layout of more than two dims", name);
      stack.members.push_back(&p);
      stack.out += p.global_shape()[0];
      stack.is_vector = p.global_shape().rank() == 1;
      if (!stack.is_vector) stack.in = p.global_shape()[1];
    }
  }
  require(seen.size() == store.all().size(), "a layout of {} parameters for a model of {}",
          seen.size(), store.all().size());
  return stacks;
}

}  // namespace llmtrain::checkpoint
