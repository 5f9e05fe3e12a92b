// Answers questions about csrc/plan/{window,matmul_shape}.h and csrc/core/tuning_cache.h, a line each: see the Python
// tests beside it for the formats. "-" is an empty list.
#include <iostream>
#include <sstream>

#include "core/tuning_cache.h"
#include "plan/matmul_shape.h"
#include "plan/window.h"

namespace {

using cuvil::Dims;

std::vector<int64_t> ints(std::istream& in) {
  std::string word;
  in >> word;
  std::vector<int64_t> out;
  if (word == "-") return out;
  std::istringstream items(word);
  for (std::string item; std::getline(items, item, ',');) out.push_back(std::stoll(item));
  return out;
}

std::string window(std::istream& in, bool transposed) {
  cuvil::WindowAttributes a;
  int auto_pad = 0;
  in >> auto_pad >> a.ceil_mode;
  a.auto_pad = static_cast<cuvil::AutoPad>(auto_pad);
  const std::vector<int64_t> size = ints(in);
  a.kernel = ints(in), a.strides = ints(in), a.pads = ints(in), a.dilations = ints(in);
  if (transposed) a.output_padding = ints(in), a.output_shape = ints(in);
  const cuvil::Window w = transposed ? a.resolve_transposed(size, {}) : a.resolve(size, {});
  std::ostringstream out;
  for (const cuvil::Spatial* s : {&w.out, &w.pad_begin, &w.pad_end}) {
    for (int i = 0; i < w.rank; ++i) out << (*s)[static_cast<size_t>(i)] << ' ';
    out << "| ";
  }
  return out.str();
}

std::string matmul(std::istream& in) {
  const std::vector<int64_t> a = ints(in), b = ints(in);
  bool trans_a = false, trans_b = false;
  in >> trans_a >> trans_b;
  const cuvil::MatMulShape s =
      cuvil::matmul_shape(Dims(a.data(), a.size()), Dims(b.data(), b.size()), trans_a, trans_b);
  std::ostringstream out;
  out << s.m << ' ' << s.n << ' ' << s.k << ' ' << s.batch << ' ' << s.stride_a << ' ' << s.stride_b << " | ";
  for (const int64_t d : s.output) out << d << ' ';
  out << "| ";
  for (const auto& c : s.calls) out << c.a << ' ' << c.b << ' ' << c.d << ' ';
  return out.str();
}

std::string remember(std::istream& in) {
  std::string path, key, value;
  in >> path >> key >> value;
  cuvil::TuningCache(std::filesystem::path(path)).put(key, value);
  return "ok";
}

std::string recall(std::istream& in) {
  std::string path, key;
  in >> path >> key;
  return cuvil::TuningCache(std::filesystem::path(path)).find(key).value_or("none");
}

// What each mode finds after the other one has remembered: "plain thorough".
std::string modes_share(std::istream& in) {
  std::string first;
  in >> first;
  cuvil::TuningCache cache{std::filesystem::path()};
  const cuvil::TuningMode plain, thorough{.measure = true, .thorough = true, .only = ""};
  cache.put("k", "v", first == "thorough" ? thorough : plain);
  return cuvil::concat(cache.find("k", plain).value_or("none"), ' ', cache.find("k", thorough).value_or("none"));
}

std::string mode() {
  const cuvil::TuningMode m = cuvil::TuningMode::from_environment();
  return cuvil::concat(m.thorough ? 2 : m.measure ? 1 : 0, ' ', m.only);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    try {
      std::cout << (command == "window"     ? window(in, false)
                    : command == "spread"   ? window(in, true)
                    : command == "matmul"   ? matmul(in)
                    : command == "remember" ? remember(in)
                    : command == "recall"   ? recall(in)
                    : command == "modes"    ? modes_share(in)
                                            : mode())
                << std::endl;
    } catch (const cuvil::Error& e) {
      std::cout << "error: " << e.what() << std::endl;
    }
  }
}
