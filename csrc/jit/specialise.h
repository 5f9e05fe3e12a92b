// What a pointwise kernel is specialised for, and the numbers its launch passes: shapes in, a plan out.
//
// The structure of the broadcast (collapsed dimensions, which input varies along which) is compiled into the kernel;
// the extents are parameters, so that a model with dynamic shapes compiles once for each structure, not each shape.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dims.h"
#include "jit/program.h"

namespace cuvil::jit {

constexpr int kThreads = 256;  // a block

enum class Access : uint8_t {
  kFull,       // one element an output element, contiguous: the index is the output's
  kScalar,     // one element in all
  kBroadcast,  // strided over the collapsed dimensions
};

struct Specialisation {
  std::vector<Access> access;   // of each input
  std::vector<uint8_t> varies;  // of each input: bit d set when it moves along collapsed dimension d
  int rank = 0;                 // collapsed dimensions, outermost first; 0 when no input is kBroadcast
  int vector = 1;               // consecutive output elements a thread reads and writes at once
  int unroll = 1;               // such groups a thread, their loads issued before anything is computed
  bool rows = false;            // a group never crosses the end of the last collapsed dimension
  bool wide = false;            // 64-bit indices
  // Call mathematical functions instead of inlining them: a long program compiles in seconds.
  bool outline = false;
  bool stream = false;  // more data than L2 holds: mark loads and stores evict-first

  bool operator==(const Specialisation&) const = default;
};

// Positions in a kernel's parameter array of 64-bit words. Codegen and launch share it.
struct ParamSlots {
  explicit ParamSlots(const Program& program, const Specialisation& spec);
  int input(int k) const { return k; }
  int output(int o) const { return inputs_ + o; }
  int count() const { return inputs_ + outputs_; }  // number of output elements
  // Of collapsed dimension d >= 1: extent, then multiplier and shift of the division by it.
  int extent(int d) const { return count() + 1 + 3 * (d - 1); }
  int stride(int k, int d) const { return strides_ + k * rank_ + d; }
  int total() const { return total_; }

 private:
  int inputs_, outputs_, rank_, strides_, total_;
};

struct Plan {
  Specialisation spec;
  Dims shape;  // of every output
  int64_t count = 0;
  unsigned blocks = 0;
  std::vector<uint64_t> params;  // as ParamSlots says, pointers still zero
};

struct DeviceTraits {
  int sm = 0;        // 10 * major + minor
  int sm_count = 0;  // multiprocessors
  size_t l2_bytes = 0;
};

// The plan for inputs of these shapes. `aligned`: every pointer that the vector path would touch is a multiple of 16.
// Throws Error(kInvalidArgument) when the shapes do not broadcast. A plan with count 0 launches nothing.
Plan make_plan(const Program& program, const std::vector<Dims>& shapes, bool aligned, const DeviceTraits& device);

}  // namespace cuvil::jit
