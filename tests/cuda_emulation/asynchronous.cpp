#include "tests/cuda_emulation/asynchronous.hpp"

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/cuda_emulation/block.hpp"

namespace simt {

namespace {

// ---- Barriers ----------------------------------------------------------------------------------

/// What an mbarrier's 64 bits hold. Memory that nobody made a barrier has another mark: it is all
/// ones when a block begins.
struct Barrier {
  static constexpr unsigned kMark = 0x2b;
  std::uint64_t mark : 6, phase : 1, expected : 12, pending : 12;
  std::int64_t bytes : 33;
};
static_assert(sizeof(Barrier) == 8);

Barrier read(const std::uint64_t* word) {
  Barrier barrier;
  std::memcpy(&barrier, word, sizeof barrier);
  if (barrier.mark != Barrier::kMark) die("an mbarrier that nobody has initialised");
  return barrier;
}

void write(std::uint64_t* word, Barrier barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.pending = barrier.expected;
    barrier.phase = !barrier.phase;
  }
  std::memcpy(word, &barrier, sizeof barrier);
}

void complete_bytes(std::uint64_t* word, std::int64_t bytes) {
  Barrier barrier = read(word);
  barrier.bytes -= bytes;
  write(word, barrier);
}

struct NamedBarrier {
  int threads = 0, arrived = 0;
  std::int64_t completed = 0;
};

// ---- Copies ------------------------------------------------------------------------------------

/// What the opaque words of a CUtensorMap hold here.
struct TensorMap {
  const std::byte* address;
  std::uint32_t sizes[4];
  std::uint64_t strides[3];  // in bytes, of the second dimension on
  std::uint32_t box[4];
  std::uint32_t mark;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));
constexpr std::uint32_t kMapMark = 0x7e5042;
constexpr std::size_t kElement = 2;  // bf16 or f16

struct Copy {
  std::uint32_t to;
  TensorMap map;
  int at[4];
  std::uint64_t* barrier;
};

std::byte* in_window(std::uint32_t address, std::size_t bytes) {
  const SharedWindow window = shared_window();
  if (address + bytes > window.bytes) die("an address behind the end of shared memory");
  return window.data + address;
}

std::size_t bytes_of(const TensorMap& map) {
  return kElement * map.box[0] * map.box[1] * map.box[2] * map.box[3];
}

/// Calls f(number of the element in the box, its indices).
template <class F>
void for_each_of_box(const TensorMap& map, const F& f) {
  std::uint32_t n = 0;
  std::uint32_t i[4];
  for (i[3] = 0; i[3] < map.box[3]; ++i[3]) {
    for (i[2] = 0; i[2] < map.box[2]; ++i[2]) {
      for (i[1] = 0; i[1] < map.box[1]; ++i[1]) {
        for (i[0] = 0; i[0] < map.box[0]; ++i[0]) f(n++, i);
      }
    }
  }
}

void land(const Copy& copy) {
  for_each_of_box(copy.map, [&](std::uint32_t n, const std::uint32_t(&i)[4]) {
    std::uint16_t value = 0;  // outside of the tensor
    const std::byte* from = copy.map.address;
    bool inside = true;
    for (int d = 0; d < 4; ++d) {
      const std::int64_t at = std::int64_t{copy.at[d]} + i[d];
      inside &= at >= 0 && at < std::int64_t{copy.map.sizes[d]};
      from += at * (d == 0 ? std::int64_t{kElement}
                           : static_cast<std::int64_t>(copy.map.strides[d - 1]));
    }
    if (inside) std::memcpy(&value, from, kElement);
    std::memcpy(in_window(swizzled(copy.to + n * std::uint32_t{kElement}), kElement), &value,
                kElement);
  });
  complete_bytes(copy.barrier, static_cast<std::int64_t>(bytes_of(copy.map)));
}

/// What setmaxnreg gave the threads of a warpgroup.
struct Registers {
  int each = 0, threads = 0;
};

struct State {
  std::map<std::size_t, Registers> registers;
  std::set<std::uint64_t*> unfenced;
  std::map<int, NamedBarrier> named;
  std::vector<Copy> copies;
  std::mt19937 random{11};
};
State state;

constexpr std::size_t kWarpgroup = 128;

/// A block has what its threads began with, the most that its launch bounds allow, and setmaxnreg
/// waits until there is enough.
void check_registers() {
  constexpr std::size_t kOfMultiprocessor = 64 << 10;
  if (state.registers.empty()) return;
  const std::size_t warpgroups = blockDim.x / kWarpgroup;
  const std::size_t began_with = kOfMultiprocessor / blockDim.x / 8 * 8;
  std::size_t wanted = (warpgroups - state.registers.size()) * began_with;
  for (const auto& [number, group] : state.registers) {
    if (group.threads != int{kWarpgroup}) die("setmaxnreg by some threads of a warpgroup");
    wanted += static_cast<std::size_t>(group.each);
  }
  if (wanted > warpgroups * began_with) die("setmaxnreg waits for registers that nobody releases");
}

}  // namespace

bool fakes_wgmma(std::string_view mode) {
  const char* const fake = std::getenv("LLMTRAIN_FAKE_WGMMA");
  return fake != nullptr && fake == mode;
}

std::uint32_t shared_address(const void* p) {
  const auto offset = static_cast<const std::byte*>(p) - shared_window().data;
  if (offset < 0 || static_cast<std::size_t>(offset) >= shared_window().bytes) {
    die("an address that is not of shared memory");
  }
  return static_cast<std::uint32_t>(offset);
}

void begin_asynchronous() {
  state.registers.clear();
  state.unfenced.clear();
  state.named.clear();
  begin_products();
}

void end_asynchronous() {
  if (!state.copies.empty()) die("a block ended before a copy into its memory");
  for (const auto& [number, barrier] : state.named) {
    if (barrier.arrived != 0) die("a named barrier that nobody waits for at the end");
  }
  check_registers();
  end_products();
}

void init_barrier(std::uint64_t* barrier, unsigned arrivals) {
  if (reinterpret_cast<std::uintptr_t>(barrier) % 8 != 0) die("an mbarrier that is not aligned");
  shared_address(barrier);
  const Barrier fresh{.mark = Barrier::kMark, .expected = arrivals, .pending = arrivals};
  std::memcpy(barrier, &fresh, sizeof fresh);
  state.unfenced.insert(barrier);
}

void fence_barrier_init() { state.unfenced.clear(); }

void arrive(std::uint64_t* word, unsigned bytes) {
  Barrier barrier = read(word);
  if (barrier.pending == 0) die("more arrivals at an mbarrier than it expects");
  barrier.bytes += bytes;
  barrier.pending -= 1;
  write(word, barrier);
}

void wait_for_phase(std::uint64_t* word, unsigned parity) {
  wait_until([=] { return read(word).phase != parity; });
}

void arrive_at_named(int number, int threads) {
  NamedBarrier& barrier = state.named[number];
  if (number < 0 || number > 15 || threads % 32 != 0) die("a named barrier that there is not");
  if (barrier.arrived > 0 && barrier.threads != threads) die("two counts for a named barrier");
  barrier.threads = threads;
  if (++barrier.arrived < threads) return;
  barrier.arrived = 0;
  ++barrier.completed;
}

void sync_named(int number, int threads) {
  const std::int64_t completed = state.named[number].completed;
  arrive_at_named(number, threads);
  wait_until([=] { return state.named[number].completed > completed; });
}

void copy_box(void* to, const CUtensorMap& map, const int (&at)[4], std::uint64_t* barrier) {
  Copy copy{
      .to = shared_address(to), .map = {}, .at = {at[0], at[1], at[2], at[3]}, .barrier = barrier};
  std::memcpy(&copy.map, &map, sizeof copy.map);
  if (copy.map.mark != kMapMark) die("a tensor map that nobody has encoded");
  if (copy.to % 128 != 0) die("a copy to an address that is not a multiple of 128");
  if (state.unfenced.contains(barrier)) die("a copy before the fence of its barrier");
  read(barrier);
  // Whoever still reads what was there reads NaN.
  std::memset(in_window(copy.to, bytes_of(copy.map)), 0xff, bytes_of(copy.map));
  state.copies.push_back(copy);
}

void set_registers(int registers) {
  if (registers % 8 != 0 || registers < 24 || registers > 256) {
    die("setmaxnreg of a number that it does not take");
  }
  Registers& group = state.registers[thread_of_block() / kWarpgroup];
  if (group.threads > 0 && group.each != registers) die("a second setmaxnreg of a warpgroup");
  group.each = registers;
  ++group.threads;
}

bool land_one_copy() {
  if (state.copies.empty()) return false;
  std::size_t n = 0;
  if (order() == Order::descending) n = state.copies.size() - 1;
  if (order() == Order::shuffled) n = state.random() % state.copies.size();
  land(state.copies[n]);
  state.copies.erase(state.copies.begin() + static_cast<std::ptrdiff_t>(n));
  return true;
}

}  // namespace simt

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  using simt::TensorMap;
  // Of all maps that there may be, those that this project makes.
  bool valid =
      !simt::fakes_wgmma("undescribed") &&
      (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16) &&
      rank == 4 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
      swizzle == CU_TENSOR_MAP_SWIZZLE_128B && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
      reinterpret_cast<std::uintptr_t>(address) % 16 == 0 &&
      reinterpret_cast<std::uintptr_t>(map) % 64 == 0 && box[0] * simt::kElement <= 128 &&
      box[0] * simt::kElement % 16 == 0;
  TensorMap encoded{.address = static_cast<const std::byte*>(address),
                    .sizes = {},
                    .strides = {},
                    .box = {},
                    .mark = simt::kMapMark};
  for (int d = 0; d < 4; ++d) {
    valid &= sizes[d] >= 1 && sizes[d] <= std::uint64_t{1} << 32;
    valid &= box[d] >= 1 && box[d] <= 256 && element_strides[d] == 1;
    encoded.sizes[d] = static_cast<std::uint32_t>(sizes[d]);
    encoded.box[d] = box[d];
    if (d == 3) continue;
    valid &= strides[d] % 16 == 0 && strides[d] < std::uint64_t{1} << 40;
    valid &= d == 0 || strides[d] % strides[d - 1] == 0;
    encoded.strides[d] = strides[d];
  }
  if (!valid) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(map, &encoded, sizeof encoded);
  return CUDA_SUCCESS;
}
