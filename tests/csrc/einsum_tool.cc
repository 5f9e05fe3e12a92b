// Lowers one Einsum a line, "=<equation> <shape> <shape> ..." with shapes as "2,3" or "-", and prints the plan as JSON.
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "plan/einsum.h"

namespace {

namespace plan = cuvil::plan;
using cuvil::Dims;

Dims parse(const std::string& text) {
  Dims out;
  std::istringstream in(text == "-" ? "" : text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(std::stoll(item));
  return out;
}

template <typename Range>
std::string list(const Range& values, size_t count) {
  std::string s = "[";
  for (size_t i = 0; i < count; ++i) s += (i ? "," : "") + std::to_string(*(values.begin() + i));
  return s + "]";
}

void print(const plan::EinsumStep& s) {
  static const char* const kKinds[] = {"copy", "reduce", "gemm", "product"};
  std::cout << "{\"kind\":\"" << kKinds[static_cast<int>(s.kind)] << "\",\"a\":" << s.a << ",\"b\":" << s.b
            << ",\"elements\":" << s.elements << ",\"offset\":" << s.view.offset;
  const size_t rank = static_cast<size_t>(s.view.rank);
  std::cout << ",\"view_extent\":" << list(s.view.extent, rank) << ",\"view_stride\":" << list(s.view.stride, rank)
            << ",\"passes\":[";
  for (size_t i = 0; i < s.reduce.passes.size(); ++i) {
    const plan::ReducePass& p = s.reduce.passes[i];
    std::cout << (i ? "," : "") << list(std::vector<int64_t>{p.outer, p.reduce, p.inner}, 3);
  }
  std::cout << "],\"m\":" << s.m << ",\"n\":" << s.n << ",\"k\":" << s.k << ",\"batch\":" << s.batch
            << ",\"stride_a\":" << s.stride_a << ",\"stride_b\":" << s.stride_b << ",\"trans_a\":" << s.trans_a
            << ",\"trans_b\":" << s.trans_b << ",\"extent\":" << list(s.extent, s.extent.size())
            << ",\"step_a\":" << list(s.step_a, s.step_a.size()) << ",\"step_b\":" << list(s.step_b, s.step_b.size())
            << ",\"reduced\":" << s.reduced << "}";
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string equation;
    words >> equation;
    equation.erase(0, 1);
    std::vector<Dims> shapes;
    for (std::string word; words >> word;) shapes.push_back(parse(word));
    try {
      const plan::EinsumPlan p =
          plan::plan_einsum(plan::parse_einsum(equation, static_cast<int>(shapes.size())), shapes);
      std::cout << "{\"output\":" << list(p.output, static_cast<size_t>(p.output.rank())) << ",\"zero\":" << p.zero
                << ",\"steps\":[";
      for (size_t i = 0; i < p.steps.size(); ++i) {
        std::cout << (i ? "," : "");
        print(p.steps[i]);
      }
      std::cout << "]}" << std::endl;
    } catch (const cuvil::Error& e) {
      std::cout << "error: " << e.what() << std::endl;
    }
  }
}
