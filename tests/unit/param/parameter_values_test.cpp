// First values: who makes and who writes them, and who asks a process to stop meanwhile.
#include <thread>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/param/parameter.hpp"
#include "lib/tensor/split_master.hpp"
#include "tests/support/asked_to_stop.hpp"

namespace llmtrain {

namespace {
// Memory that one thread may write, so often.
class WatchedMemory final : public MemoryBackend {
 public:
  explicit WatchedMemory(int writes) : writes_(writes) {}
  DeviceKind kind() const override { return memory_->kind(); }
  void* reserve(std::uint64_t bytes) override { return memory_->reserve(bytes); }
  void copy_to_host(void* host, const void* device, std::uint64_t bytes) override {
    memory_->copy_to_host(host, device, bytes);
  }
  void copy_from_host(void* device, const void* host, std::uint64_t bytes) override {
    require<DeviceError>(std::this_thread::get_id() == owner_, "another thread");
    require<DeviceError>(--writes_ >= 0, "full");
    memory_->copy_from_host(device, host, bytes);
  }
  void copy_on_device(void* to, const void* from, std::uint64_t bytes) override {
    memory_->copy_on_device(to, from, bytes);
  }

 private:
  std::unique_ptr<MemoryBackend> memory_ = make_cpu_memory();
  std::thread::id owner_ = std::this_thread::get_id();
  int writes_;
};
}  // namespace

TEST_CASE("the thread that asks for first values writes them, and has the device's error") {
  for (const int writes : {6, 5, 2, 0}) {
    Device device(std::make_unique<WatchedMemory>(writes), 1 << 24);
    const Mesh mesh({}, 0, self_factory());
    ParameterStore store(mesh);
    // Written three times, each a copy and a remainder.
    store.declare({.name = "w", .shape = {3, 1 << 18}, .init = {Initializer::Kind::normal, 0.5}});
    store.allocate(device, {.compute = DType::bf16, .form = MasterForm::remainder}, false);
    if (writes == 6) {
      store.initialize(1, 4);
    } else {
      CHECK_THROWS_WITH_AS(store.initialize(1, 4), doctest::Contains("full"), DeviceError);
    }
  }
}

TEST_CASE("a rank with a slice of the copy and the master alone has its first values there") {
  for (const MasterForm form : {MasterForm::whole, MasterForm::remainder}) {
    std::int64_t seen = 0;
    for (int rank = 0; rank < 4; ++rank) {
      Device device(make_cpu_memory(), 1 << 24);
      const Mesh mesh({.sizes = {4, 1, 1, 1}}, rank, meta_factory(nullptr));
      ParameterStore store(mesh);
      const Initializer init{Initializer::Kind::normal, 0.5};
      store.declare({.name = "w", .shape = {900, 1027}, .init = init});
      store.slice([](const Parameter&) { return 1; }, {.gradients = true, .parameters = true});
      store.allocate(device, {.compute = DType::bf16, .form = form}, true);
      store.initialize(7, 2);
      const Parameter& w = store.find("w");
      const ParameterSlice& own = w.own_slice();
      std::vector<float> values(static_cast<std::size_t>(own.count));
      store.read_part(w, own.first, std::as_writable_bytes(std::span(values)));
      const PhiloxKey key = philox_key(7, "init", "w");
      std::int64_t different = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto index = static_cast<std::uint64_t>(own.first) + i;
        const double normal = normal_quantile(unit_interval(philox_word(key, 0, index)));
        const auto expected = static_cast<float>(init.std * normal);
        different += values[i] != expected;
        different += w.own_compute().view().as<bf16>()[i] != split_master(expected).copy;
      }
      CHECK(different == 0);
      seen += own.count;
    }
    CHECK(seen == 900 * 1027);
  }
}

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
