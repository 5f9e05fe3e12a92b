// Answers one question a line about csrc/plan: "<function> <list> <list> ...", a list being "1,2,3" or "-" for none.
// Prints the numbers of the answer, or "error: ..." with what the library threw.
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "plan/mean_variance.h"
#include "plan/pad.h"
#include "plan/reduce.h"
#include "plan/resize.h"
#include "plan/shapes.h"
#include "plan/slice.h"
#include "plan/strided.h"

namespace {

using cuvil::Dims;
using List = std::vector<int64_t>;
namespace plan = cuvil::plan;

List parse(const std::string& text) {
  List out;
  std::istringstream in(text == "-" ? "" : text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(std::stoll(item));
  return out;
}

Dims dims(const List& l) { return Dims(l.data(), l.size()); }

void print(const Dims& d) {
  for (int64_t v : d) std::cout << v << ' ';
}

void print(const plan::View& v) {
  std::cout << "| " << v.offset << " | ";
  for (size_t i = 0; i < static_cast<size_t>(v.rank); ++i) std::cout << v.extent[i] << ' ';
  std::cout << "| ";
  for (size_t i = 0; i < static_cast<size_t>(v.rank); ++i) std::cout << v.stride[i] << ' ';
}

plan::View view(const List& extents, const List& strides, int64_t offset) {
  plan::View v;
  v.offset = offset;
  for (size_t i = 0; i < extents.size(); ++i) v.push_back(extents[i], strides[i]);
  return v;
}

const std::map<std::string, std::function<void(const std::vector<List>&)>> kFunctions = {
    {"reshape", [](auto& a) { print(plan::reshape(dims(a[0]), a[1], a[2][0] != 0)); }},
    {"flatten", [](auto& a) { print(plan::flatten(dims(a[0]), a[1][0])); }},
    {"squeeze", [](auto& a) { print(plan::squeeze(dims(a[0]), a[1])); }},
    {"unsqueeze", [](auto& a) { print(plan::unsqueeze(dims(a[0]), a[1])); }},
    {"expand", [](auto& a) { print(plan::expand(dims(a[0]), a[1])); }},
    {"range", [](auto& a) { std::cout << plan::range_size(a[0][0], a[1][0], a[2][0]); }},
    {"slice",
     [](auto& a) {
       const plan::SlicePlan p = plan::slice(dims(a[0]), a[1], a[2], a[3], a[4]);
       print(p.shape);
       print(p.view);
     }},
    {"collapse", [](auto& a) { print(plan::collapse(view(a[0], a[1], a[2][0]))); }},
    {"widen",
     [](auto& a) {
       plan::View v = plan::collapse(view(a[0], a[1], a[2][0]));
       const int size =
           plan::widen(&v, static_cast<int>(a[3][0]), static_cast<uintptr_t>(a[4][0]), static_cast<uintptr_t>(a[5][0]));
       std::cout << size << ' ';
       print(v);
     }},
    {"reduce",
     [](auto& a) {
       const plan::ReducePlan p = plan::reduce(dims(a[0]), a[1], a[2][0] != 0, a[3][0] != 0);
       print(p.shape);
       std::cout << "| " << p.count;
       for (const plan::ReducePass& s : p.passes) std::cout << " | " << s.outer << ' ' << s.reduce << ' ' << s.inner;
     }},
    {"mean_variance",
     [](auto& a) {
       const plan::MeanVariancePlan p = plan::mean_variance(dims(a[0]), a[1]);
       std::cout << p.segments << ' ' << p.rows << ' ' << p.width << ' ' << p.copied << ' ';
       print(p.gather);
       print(p.scatter);
     }},
    {"pad",
     [](auto& a) {
       const plan::PadPlan p = plan::pad(dims(a[0]), a[1], a[2], static_cast<cuvil::PadMode>(a[3][0]));
       print(p.shape);
       std::cout << "| " << p.offset;
       for (int i = 0; i < p.rank; ++i)
         std::cout << " | " << p.out_extent[i] << ' ' << p.in_extent[i] << ' ' << p.in_stride[i] << ' ' << p.begin[i];
     }},
    // Scales and the region of interest are given in hundredths.
    {"resize",
     [](auto& a) {
       plan::ResizeRequest request{.scales = {}, .sizes = a[2], .roi = {}, .axes = a[4]};
       for (int64_t v : a[1]) request.scales.push_back(static_cast<float>(v) / 100);
       for (int64_t v : a[3]) request.roi.push_back(static_cast<float>(v) / 100);
       request.policy = static_cast<plan::AspectPolicy>(a[5][0]);
       const plan::ResizePlan p = plan::resize(dims(a[0]), request, a[6][0] != 0);
       print(p.shape);
       for (int i = 0; i < p.rank; ++i)
         std::cout << "| " << p.dim[i].in << ' ' << p.dim[i].out << ' ' << p.dim[i].in_stride << ' ' << p.dim[i].resized
                   << ' ';
     }},
    {"reduce_parts",
     [](auto& a) { std::cout << plan::reduce_parts({a[0][0], a[0][1], a[0][2]}, a[1][0], static_cast<int>(a[2][0])); }},
};

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<List> lists;
    for (std::string word; words >> word;) lists.push_back(parse(word));
    try {
      kFunctions.at(name)(lists);
    } catch (const cuvil::Error& e) {
      std::cout << "error: " << e.what();
    }
    std::cout << std::endl;
  }
}
