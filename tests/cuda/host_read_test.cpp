// What the host shows of itself while it waits for a GPU.
#include <array>
#include <cstring>

#include "lib/base/activity.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

TEST_CASE("who waits for a read shows each input that arrived before it, and no later one") {
  Machine machine(Place::gpu, DType::f32, DType::f32);
  const Tensor x = machine.zeros({4}, DType::f32);
  const auto send = [&](float value) {
    const std::array<float, 4> values{value, value, value, value};
    machine.device().copy_from_host(x, std::as_bytes(std::span(values)));
  };
  const auto read = machine.device().make_host_read(x.view().bytes());
  machine.device().synchronize();
  for (int i = 1; i <= 20; ++i) send(static_cast<float>(i));
  read->start(x.view().data);
  for (int i = 21; i <= 25; ++i) send(static_cast<float>(i));

  const std::uint64_t before = activity::ticks();
  float first = 0;
  std::memcpy(&first, read->wait().data(), sizeof first);
  CHECK(first == 20);
  CHECK(activity::ticks() - before == 20);
  machine.device().synchronize();
  CHECK(activity::ticks() - before == 25);
}
