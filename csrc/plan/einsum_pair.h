// The product of two terms of an Einsum: which kernel, and which copies it needs. Part of plan/einsum.cc.
#pragma once

#include <set>
#include <vector>

#include "plan/einsum.h"

namespace cuvil::plan {

struct Axis {
  int label;
  int64_t extent;  // above 1
  int64_t stride;
};

// A tensor seen through labels, each once.
struct Term {
  int tensor;
  std::vector<Axis> axes;

  const Axis* find(int label) const;
  Axis* find(int label) { return const_cast<Axis*>(static_cast<const Term*>(this)->find(label)); }
  std::vector<int> labels() const;
  int64_t size() const;
  // Whether the tensor is laid out as a contiguous one of these labels, all of the term's.
  bool is_contiguous(const std::vector<int>& order) const;
};

std::set<int> labels_of(const Term& a, const Term& b);

// Contiguous in this order; extents are those of `like`.
Term contiguous_term(int tensor, const std::vector<int>& order, const Term& like);

// A step that copies `term` into this order. `*tensors` counts the tensors there are.
Term add_copy(EinsumPlan* plan, int* tensors, const Term& term, const std::vector<int>& order);

// Steps that multiply a and b and sum over the labels both have that are not `needed`. With `last`, the result is
// wanted in the order of `output`, which is then no more than a wish.
Term add_pair(EinsumPlan* plan, int* tensors, const Term& a, const Term& b, const std::set<int>& needed,
              const std::vector<int>& output, bool last);

}  // namespace cuvil::plan
