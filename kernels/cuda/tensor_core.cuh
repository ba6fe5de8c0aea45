#pragma once
/// Tensor cores of sm_80 and later, and the copies that feed them: mma, ldmatrix and cp.async as
/// functions. In tests without a GPU they follow the layouts of the PTX manual lane by lane, and a
/// copied byte arrives when it is waited for and not before.
///
/// Fragments of mma.m16n8k16; g = lane / 4, t = lane % 4:
///   A 16 x 16: x[0] (g, 2t..2t+1), x[1] (g + 8, 2t..), x[2] (g, 2t + 8..), x[3] (g + 8, 2t + 8..)
///   B 16 x 8:  x[0] (2t..2t+1, g), x[1] (2t + 8.., g)
///   C 16 x 8:  x[0..1] (g, 2t..2t+1), x[2..3] (g + 8, 2t..)
/// and of mma.m16n8k8 for TF32, a number a register, with the same C:
///   A 16 x 8: x[0] (g, t), x[1] (g + 8, t), x[2] (g, t + 4), x[3] (g + 8, t + 4)
///   B 8 x 8:  x[0] (t, g), x[1] (t + 4, g)

#include "kernels/cuda/element.cuh"

#ifdef LLMTRAIN_CUDA_EMULATION
#include <vector>
#endif

namespace llmtrain::kernels::cuda {

/// Two bf16, or two f16, in each register, the lower half first; or one number for TF32.
struct FragmentA {
  std::uint32_t x[4];
};
struct FragmentB {
  std::uint32_t x[2];
};
struct FragmentC {
  float x[4];
};
/// Four 8 x 8 matrices as ldmatrix gives them: an A, or two neighbouring B.
using Matrices = FragmentA;

__device__ __forceinline__ FragmentB first_b(const Matrices& m) { return {{m.x[0], m.x[1]}}; }
__device__ __forceinline__ FragmentB second_b(const Matrices& m) { return {{m.x[2], m.x[3]}}; }

#ifdef LLMTRAIN_CUDA_EMULATION

template <class T>
float half_of(std::uint32_t pair, int half) {
  return widen(T{static_cast<std::uint16_t>(pair >> (16 * half))});
}

/// c += a * b, whose elements are T: bf16, f16, or float that to_tf32() has rounded.
template <class T>
void mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  constexpr int kTerms = std::is_same_v<T, float> ? 8 : 16;
  struct {
    FragmentA a;
    FragmentB b;
  } const mine{a, b};
  const simt::Lanes& lanes = simt::exchange(~0u, &mine, sizeof mine);
  const auto word = [&](int lane, int index) {
    std::uint32_t x;
    std::memcpy(&x, lanes.bytes[std::size_t(lane)].data() + 4 * index, 4);
    return x;
  };
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = i / 2, column = 2 * t + i % 2;  // row: lower or upper half of the 16
    double sum = c.x[i];
    for (int k = 0; k < kTerms; ++k) {
      float x, y;
      if constexpr (std::is_same_v<T, float>) {
        x = __uint_as_float(word(4 * g + k % 4, row + k / 4 * 2));
        y = __uint_as_float(word(4 * column + k % 4, 4 + k / 4));
      } else {
        x = half_of<T>(word(4 * g + k % 8 / 2, row + k / 8 * 2), k % 2);
        y = half_of<T>(word(4 * column + k % 8 / 2, 4 + k / 8), k % 2);
      }
      sum += double(x) * double(y);
    }
    c.x[i] = static_cast<float>(sum);
  }
}

/// The bits of a float with 10 of mantissa, to nearest, ties away from zero.
inline std::uint32_t to_tf32(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return x != x ? bits : (bits + 0x1000u) & ~0x1fffu;
}

/// Lane l gives the address of row l % 8 of matrix l / 8: 16 bytes.
inline Matrices ldmatrix(const void* row) {
  const simt::Lanes& lanes = simt::exchange(~0u, row, 16);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  Matrices result;
  for (int m = 0; m < 4; ++m) {
    std::memcpy(&result.x[m], lanes.bytes[std::size_t(8 * m + g)].data() + 4 * t, 4);
  }
  return result;
}
inline Matrices ldmatrix_transposed(const void* row) {
  const simt::Lanes& lanes = simt::exchange(~0u, row, 16);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  Matrices result;
  for (int m = 0; m < 4; ++m) {
    std::uint16_t x[2];
    for (int i = 0; i < 2; ++i) {
      std::memcpy(&x[i], lanes.bytes[std::size_t(8 * m + 2 * t + i)].data() + 2 * g, 2);
    }
    result.x[m] = x[0] | std::uint32_t{x[1]} << 16;
  }
  return result;
}

/// What a thread has asked for and not waited for, in groups.
struct PendingCopies {
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
    bool real;
  };
  std::vector<std::vector<Copy>> groups{1};
  static PendingCopies& mine() {
    static PendingCopies all[1024];
    return all[threadIdx.x];
  }
};
template <int bytes>
void copy_async(void* to, const void* from, bool real) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
    throw InternalError("cp.async of addresses that are not aligned");
  }
  auto& groups = PendingCopies::mine().groups;
  for (const auto& group : groups) {
    for (const auto& copy : group) {
      if (copy.to == to) throw InternalError("cp.async to where another copy is under way");
    }
  }
  std::memset(to, 0xff, bytes);  // whoever still reads what was there reads NaN
  groups.back().push_back({to, from, bytes, real});
}
inline void commit_copies() { PendingCopies::mine().groups.emplace_back(); }
template <int groups_left>
void wait_for_copies() {
  auto& groups = PendingCopies::mine().groups;
  // The last one is still open.
  while (static_cast<int>(groups.size()) - 1 > groups_left) {
    for (const auto& copy : groups.front()) {
      if (copy.real) std::memcpy(copy.to, copy.from, copy.bytes);
      if (!copy.real) std::memset(copy.to, 0, copy.bytes);
    }
    groups.erase(groups.begin());
  }
}

inline float reciprocal_fast(float x) { return 1.0f / x; }

#else

template <class T>
__device__ __forceinline__ void mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  } else if constexpr (std::is_same_v<T, float>) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  }
}

__device__ __forceinline__ std::uint32_t to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ Matrices ldmatrix(const void* row) {
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.x[0]), "=r"(m.x[1]), "=r"(m.x[2]), "=r"(m.x[3])
               : "r"(shared_address(row))
               : "memory");
  return m;
}
__device__ __forceinline__ Matrices ldmatrix_transposed(const void* row) {
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.x[0]), "=r"(m.x[1]), "=r"(m.x[2]), "=r"(m.x[3])
               : "r"(shared_address(row))
               : "memory");
  return m;
}

/// Copies 16 or 4 bytes to shared memory; zeros where `real` is false, and `from` is not read.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool real) {
  static_assert(bytes == 16 || bytes == 4);
  if constexpr (bytes == 16) {
    // .cg: tiles are used from shared memory only, so they need not take room in L1.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(real ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(real ? 4 : 0)
                 : "memory");
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until at most so many of this thread's groups are under way. Others see them after a barrier.
template <int groups_left>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

/// To one unit in the last place; 0 for infinity.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

}  // namespace llmtrain::kernels::cuda
