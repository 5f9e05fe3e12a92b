// A row of a contiguous matrix held in the registers of one warp or one block: what softmax and the norms share.
#pragma once

#include "device/reduce.cuh"
#include "device/vec.cuh"

namespace cuvil::device {

// `Threads` neighbouring threads share a row: a power of two up to 32 (several rows a block) or the block size (a block
// a row). Each thread holds `Ept` elements as Ept / V accesses of V elements; neighbouring threads hold neighbouring
// accesses.
template <typename T, int Threads_, int Ept_, int V_>
struct RowLayout {
  using Element = T;
  static constexpr int Threads = Threads_;
  static constexpr int Ept = Ept_;
  static constexpr int V = V_;
  static constexpr int kBlock = Threads <= 32 ? 128 : Threads;
  static constexpr int kRows = kBlock / Threads;  // rows a block
  static_assert(Ept % V == 0, "a thread holds whole vectors");

  // May lie past the last row in the last block; all threads of a warp must reach the reductions.
  static __device__ __forceinline__ int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * kRows + (kRows > 1 ? threadIdx.x / Threads : 0);
  }
  // First element of this thread's access k.
  static __device__ __forceinline__ int start(int k) {
    return (k * Threads + static_cast<int>(threadIdx.x % Threads)) * V;
  }
  // Reads row elements [0, n); the places past the end hold `fill`. n is a multiple of V.
  static __device__ __forceinline__ void read(const T* p, int n, Compute<T> fill, Compute<T> (&v)[Ept]) {
#pragma unroll
    for (int k = 0; k < Ept / V; ++k) {
      const int i = start(k);
      if (i < n) {
        const Vec<T, V> in = load<T, V>(p + i);
#pragma unroll
        for (int j = 0; j < V; ++j) v[k * V + j] = to_compute(in[j]);
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) v[k * V + j] = fill;
      }
    }
  }
  static __device__ __forceinline__ void write(T* p, int n, const Compute<T> (&v)[Ept]) {
#pragma unroll
    for (int k = 0; k < Ept / V; ++k) {
      const int i = start(k);
      if (i >= n) continue;
      Vec<T, V> out;
#pragma unroll
      for (int j = 0; j < V; ++j) out[j] = from_compute<T>(v[k * V + j]);
      store<T, V>(p + i, out);
    }
  }
  template <typename C, typename Op>
  static __device__ __forceinline__ C reduce(C v, Op op, C identity, C* shared) {
    if constexpr (Threads <= 32) {
      return warp_reduce<Threads>(v, op);
    } else {
      return block_reduce(v, op, identity, shared);
    }
  }
};

// Whether rows of n elements can be moved in 16-byte accesses from all of these addresses (null ones are not read).
template <typename T, typename... Pointers>
bool rows_are_vectors(int64_t n, const Pointers*... p) {
  return n % kVec16<T> == 0 && ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

// Calls f.template operator()<Layout>() with a layout that holds rows of n elements, or returns false when none does.
// With enough rows to fill the card a thread holds much, so that many loads are in flight and few threads wait for one
// another; with few rows it holds little, so that each row is done soon.
template <typename T, int V, typename F>
bool with_row_layout(int64_t rows, int64_t n, const F& f) {
  // Doubles take two registers each, so a thread holds fewer of them.
  constexpr int kMany = sizeof(T) == 8 ? 8 : 32;
  const bool fills_card = rows * (n > 1024 ? n : 1024) >= 1 << 21 && kMany > 8;
  if (n <= 8) {
    f.template operator()<RowLayout<T, 1, 8, V>>();
  } else if (n <= 4 * 8) {
    f.template operator()<RowLayout<T, 4, 8, V>>();
  } else if (n <= 8 * 8) {
    f.template operator()<RowLayout<T, 8, 8, V>>();
  } else if (n <= 16 * 8) {
    f.template operator()<RowLayout<T, 16, 8, V>>();
  } else if (n <= 32 * 8) {
    f.template operator()<RowLayout<T, 32, 8, V>>();
  } else if (n <= 32 * kMany && fills_card) {
    f.template operator()<RowLayout<T, 32, kMany, V>>();
  } else if (n <= 128 * 8) {
    f.template operator()<RowLayout<T, 128, 8, V>>();
  } else if (n <= 128 * kMany && fills_card) {
    f.template operator()<RowLayout<T, 128, kMany, V>>();
  } else if (n <= 512 * 8) {
    f.template operator()<RowLayout<T, 512, 8, V>>();
  } else if (n <= 256 * kMany && fills_card) {
    f.template operator()<RowLayout<T, 256, kMany, V>>();
  } else if (n <= 1024 * 8) {
    f.template operator()<RowLayout<T, 1024, 8, V>>();
  } else if (n <= 512 * kMany) {
    f.template operator()<RowLayout<T, 512, kMany, V>>();
  } else if (n <= 1024 * kMany) {
    f.template operator()<RowLayout<T, 1024, kMany, V>>();
  } else {
    return false;
  }
  return true;
}

}  // namespace cuvil::device
