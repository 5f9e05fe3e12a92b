// The host side of packed weights, for test_int4_layout.py:
//   pack SOURCE_BITS FLIP STRIDE_ROW STRIDE_DEPTH FIRST BITS ROWS DEPTH ORDERED   codes (and an order) from stdin,
//   packed to stdout schedule TILES STEPS BLOCKS    a line of begin(b) for each b and the end; of owners of each step;
//   of tile, block, slot order GROUPS SIZE              groups of places from stdin; a line of places, one of groups
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "core/error.h"
#include "device/int4_layout.cuh"
#include "device/tile_schedule.cuh"
#include "plan/group_order.h"

namespace {

std::vector<uint8_t> read_all() {
  std::vector<uint8_t> bytes;
  for (int c; (c = std::getchar()) != EOF;) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

void pack(const std::vector<int64_t>& n) {
  using namespace cuvil::device;
  std::vector<uint8_t> input = read_all();
  const int bits = static_cast<int>(n[5]);
  const int64_t rows = n[6], depth = n[7];
  std::vector<int32_t> order;
  if (n[8]) {  // the order lies behind the codes
    const size_t bytes = static_cast<size_t>(depth) * sizeof(int32_t);
    const auto* first = reinterpret_cast<const int32_t*>(input.data() + input.size() - bytes);
    order.assign(first, first + depth);
  }
  const CodeTable codes{input.data(), static_cast<int>(n[0]), static_cast<int>(n[1]), n[2], n[3], n[4]};
  for (int64_t row = 0; row < rows; row += kUnitRows)
    for (int64_t place = 0; place < depth; place += kUnitDepth)
      for (int plane = 0; plane < bits / 4; ++plane)
        for (int lane = 0; lane < 32; ++lane)
          for (int word = 0; word < 4; ++word) {
            const uint32_t packed =
                pack_word(codes, rows, depth, n[8] ? order.data() : nullptr, bits, row, place, lane, plane, word);
            std::fwrite(&packed, sizeof(packed), 1, stdout);
          }
}

void schedule(const std::vector<int64_t>& n) {
  const cuvil::device::TileSchedule s{static_cast<int>(n[0]), static_cast<int>(n[1]), static_cast<int>(n[2])};
  for (int b = 0; b <= s.blocks; ++b) std::cout << s.begin(b) << ' ';
  std::cout << '\n';
  for (int i = 0; i < s.total(); ++i) std::cout << s.owner(i) << ' ';
  std::cout << '\n';
  for (int t = 0; t < s.tiles; ++t)
    for (int b = s.first_block(t); b <= s.last_block(t); ++b) std::cout << t << ' ' << b << ' ' << s.slot(b, t) << ' ';
  std::cout << '\n';
}

void order(const std::vector<int64_t>& n) {
  std::vector<int32_t> groups;
  for (int32_t g; std::cin >> g;) groups.push_back(g);
  const cuvil::GroupOrder order = cuvil::order_by_group(groups, n[0], static_cast<int>(n[1]));
  for (const int32_t p : order.places) std::cout << p << ' ';
  std::cout << '\n';
  for (const int32_t g : order.groups) std::cout << g << ' ';
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::vector<int64_t> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(std::atoll(argv[i]));
  const std::string command = argv[1];
  try {
    if (command == "pack" && numbers.size() == 9) return pack(numbers), 0;
    if (command == "schedule" && numbers.size() == 3) return schedule(numbers), 0;
    if (command == "order" && numbers.size() == 2) return order(numbers), 0;
  } catch (const cuvil::Error& e) {
    std::cerr << e.what();
    return 1;
  }
  return 2;
}
