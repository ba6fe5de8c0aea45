// Times of launches by the device's own clock.
#include <chrono>
#include <numeric>

#include "kernels/activations.hpp"
#include "kernels/matmul.hpp"
#include "lib/base/error.hpp"
#include "lib/plan/kernel_clock.hpp"
#include "tests/cuda/matmul_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

TEST_CASE("a device's clock times each launch, and waits for none before it is asked") {
  Machine machine = gpu_machine(DType::f64);
  const Problem p{65, 33, 31};
  const Operation operation(machine, p);
  const auto timer = gpu().time_launches(machine.device());
  CHECK(timer->take().empty());
  for (const std::size_t launches : {3, 5}) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < launches; ++i) {
      timer->begin();
      run(machine, p, operation);
      timer->end();
      run(machine, p, operation);  // nobody's time
    }
    const std::vector<double> seconds = timer->take();
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
    REQUIRE(seconds.size() == launches);
    for (const double s : seconds) CHECK(s > 0);
    CHECK(std::accumulate(seconds.begin(), seconds.end(), 0.0) < all.count());
  }
  CHECK(timer->take().empty());
  timer->begin();
  CHECK_THROWS_AS(timer->take(), InternalError);
}

TEST_CASE("kernels that a device's clock times have the launches and work of the host's clock") {
  const auto clocked = [](bool by_device) {
    Machine machine = gpu_machine(DType::f64);
    const Problem p{24, 40, 32};
    const Operation operation(machine, p);
    plan::KernelClock clock =
        by_device ? plan::KernelClock(gpu().kernels(), gpu().time_launches(machine.device()))
                  : plan::KernelClock(gpu().kernels());
    machine.ctx().table = &clock.table();
    machine.ctx().recorder = &clock;
    run(machine, p, operation);
    clock.reset();
    const Tensor column_sums = machine.zeros({40}, DType::f64);
    for (int i = 0; i < 3; ++i) {
      run(machine, p, operation);
      machine.run(ColumnSum{operation.c, column_sums});
    }
    // A product that leaves its activation to another kernel of the table is one launch.
    Matmul activate = operation.kernel;
    const Tensor pre = machine.output({24, 40});
    activate.epilogue = ProductEpilogue::activate;
    activate.activation = Activation::gelu_pytorch_tanh;
    activate.pre = pre;
    machine.run(activate);
    std::map<std::string, std::int64_t> counts;
    for (const plan::KernelTime& time : clock.times()) {
      counts[time.name] = time.count;
      CHECK(time.seconds > 0);
      CHECK(time.cost.bytes() > 0);
    }
    for (const plan::KernelTime& time : clock.times()) CHECK(time.count == counts[time.name]);
    return counts;
  };
  const auto by_device = clocked(true);
  CHECK(by_device == clocked(false));
  CHECK(by_device.size() == 2);
}
