// Products with packed weights of 4 and 8 bits: which kernel, cut up how, is chosen by measuring and remembered.
//
// float16, bfloat16: the tensor-core kernels (kernels/int4_gemm.cuh), or for many rows the weight as numbers and
// cuBLASLt. float32: a kernel of its own for a few rows, else the weight as numbers and cuBLASLt.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tuning_cache.h"
#include "kernels/int4_gemm.cuh"
#include "libs/measure.h"
#include "ops/op.h"

namespace cuvil {

// act(x W + bias + residual).
struct Int4Product {
  Int4Weight weight;
  const void* x = nullptr;  // [m, weight.depth]
  int64_t m = 0;
  const void* bias = nullptr;      // weight.rows of them
  const void* residual = nullptr;  // as y
  ActivationParams activation;
  void* y = nullptr;             // [m, weight.rows]
  unsigned* counters = nullptr;  // see Int4GemmParams
  int64_t tiles = 0;             // of them
  bool constant = false;         // no kernel of this run writes the weight
};

// The ways to run a product of m rows that are worth measuring, the likeliest first; `every`: others, too. Host
// arithmetic only.
std::vector<Int4Way> int4_ways(const Int4Weight& weight, int64_t m, const DeviceInfo& device, bool every = false);

// For CUVIL_TUNING=only:PREFIX.
std::string int4_way_name(const Int4Weight& weight, int64_t m, const Int4Way& way);

class Int4Engine : public SharedState {
 public:
  void run(OpContext& ctx, const Int4Product& product);

 private:
  struct Choice {
    bool library = false;
    Int4Way way;
  };

  Choice choose(OpContext& ctx, const Int4Product& product);
  std::vector<Choice> choices(OpContext& ctx, const Int4Product& product) const;
  double measure(OpContext& ctx, const Int4Product& product, const Choice& choice);
  void run_kernel(OpContext& ctx, const Int4Product& product, const Int4Way& way);
  void run_library(OpContext& ctx, const Int4Product& product);
  Int4GemmParams params_of(OpContext& ctx, const Int4Product& product, Int4Way way) const;

  const TuningMode tuning_ = TuningMode::from_environment();
  libs::Measurer measurer_;
  std::unique_ptr<TuningCache> cache_;
  std::map<std::string, Choice> chosen_;
};

}  // namespace cuvil
