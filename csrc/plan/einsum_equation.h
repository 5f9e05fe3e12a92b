// The equation of an Einsum, read once: "bij,bjk->bik", "...ii->...i", "ij,jk" (implicit output). Host code, no CUDA.
#pragma once

#include <string>
#include <vector>

namespace cuvil::plan {

// Labels are characters; dimensions that an ellipsis stands for are kEllipsis + their distance from its last one.
constexpr int kEllipsis = 256;

struct EinsumTerm {
  std::vector<int> before;  // labels before the ellipsis; all of them when there is none
  std::vector<int> after;
  bool ellipsis = false;
};

struct EinsumEquation {
  std::vector<EinsumTerm> inputs;
  EinsumTerm output;
};

// Throws when the equation is malformed, has other than `inputs` input terms (any number when negative), repeats a
// label in the output, or drops an ellipsis.
EinsumEquation parse_einsum(const std::string& equation, int inputs);

}  // namespace cuvil::plan
