// Who asks a process to stop while it makes values.
#include <doctest/doctest.h>

#include "lib/param/parameter.hpp"
#include "tests/support/asked_to_stop.hpp"

namespace llmtrain {

TEST_CASE("a request to stop ends the making of first values") {
  Device cpu(make_cpu_memory(), 1 << 24);
  const Mesh mesh({}, 0, self_factory());
  ParameterStore store(mesh);
  store.declare({.name = "a", .shape = {10, 10}});
  store.allocate(cpu, {}, true);
  const test::AskedToStop asked;
  CHECK_THROWS_AS(store.initialize(1), Stopped);
}

}  // namespace llmtrain
