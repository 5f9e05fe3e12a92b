#include <algorithm>

#include "ops/int4_engine.h"

namespace cuvil {
namespace {

constexpr int kMostStages = 6;
constexpr int kReservedShared = 1024;  // of each block, by CUDA

// The deepest pipeline that lets `resident` blocks share a multiprocessor, 0 when there is none.
int stages_that_fit(const Int4Weight& w, Int4Way way, int resident, const DeviceInfo& device) {
  const int64_t limit = (static_cast<int64_t>(device.max_shared_per_block) + kReservedShared) / resident;
  for (way.stages = kMostStages; way.stages >= 2; --way.stages)
    if (int4_shared_bytes(w, way) + kReservedShared <= limit) return way.stages;
  return 0;
}

// The way with grids that fill the device, where `resident` blocks share a multiprocessor.
void add_grids(const Int4Weight& w, int64_t m, Int4Way way, int resident, const DeviceInfo& device, bool every,
               std::vector<Int4Way>* ways) {
  const int64_t tiles = int4_tiles(w, way, static_cast<int>(m)), total = tiles * int4_steps(w, way);
  std::vector<int64_t> grids;
  const auto add = [&](int64_t blocks) {
    if (std::find(grids.begin(), grids.end(), blocks) == grids.end()) grids.push_back(blocks);
  };
  // Half of the places are left to the kernel behind, which then fetches its weight early.
  if (way.wgmma && resident == 2) add(std::min<int64_t>(device.sm_count, total));
  add(std::min(int64_t{device.sm_count} * resident, total));
  // Each tile to a block of its own where that leaves few multiprocessors idle.
  if (every || 2 * tiles > device.sm_count) add(tiles);
  for (const int64_t blocks : grids) {
    way.blocks = static_cast<int>(blocks);
    ways->push_back(way);
  }
}

// Room for how much of x lets `resident` blocks of the direct kernel share a multiprocessor.
int pieces_that_fit(const Int4Weight& w, Int4Way way, int resident, const DeviceInfo& device) {
  const int64_t limit = (static_cast<int64_t>(device.max_shared_per_block) + kReservedShared) / resident;
  way.stages = Int4Direct::pieces(w, way);
  while (way.stages > 0 && Int4Direct::shared_bytes(way, way.columns) + kReservedShared > limit)
    way.stages = std::min(way.stages - 1, Int4Direct::kMostPieces);
  return way.stages;
}

// Ways of the direct kernel: at most 16 or 8 warps a block, as many as are busy all the time.
void add_direct(const Int4Weight& w, int columns, const DeviceInfo& device, std::vector<Int4Way>* ways) {
  const int chunks = Int4Direct::chunks(w), tiles = w.row_units();
  const auto add = [&](const Int4Way& way) {
    if (std::find(ways->begin(), ways->end(), way) == ways->end()) ways->push_back(way);
  };
  for (const int most : {Int4Direct::kMostWarps, Int4Direct::kMostWarps / 2}) {
    const int turns = (chunks + most - 1) / most;
    Int4Way way{.columns = columns};
    way.warps = (chunks + turns - 1) / turns;
    int resident = Int4Direct::kMostWarps / way.warps;
    while (resident > 0 && (way.stages = pieces_that_fit(w, way, resident, device)) < 2) --resident;
    if (resident == 0) continue;
    way.blocks = std::min(resident * device.sm_count, tiles);
    add(way);
    if (resident > 1) way.blocks = tiles;  // the next block takes the place of whichever ends first
    add(way);
  }
}

}  // namespace

std::string int4_way_name(const Int4Weight& w, int64_t m, const Int4Way& way) {
  const std::string cut = concat(" s", way.stages, " b", way.blocks);
  if (way.warps > 0) return concat("direct c", way.columns, " w", way.warps, cut);
  const bool whole = way.blocks == int4_tiles(w, way, static_cast<int>(m));
  return concat(way.wgmma ? "wgmma c" : "mma c", way.columns, way.wide ? " wide" : " narrow",
                whole ? " whole" : " shared", cut);
}

std::vector<Int4Way> int4_ways(const Int4Weight& w, int64_t m, const DeviceInfo& device, bool every) {
  std::vector<int> columns;
  if (m > 64) columns = {64, 128};
  for (const int c : {8, 16, 32, 64})
    if (columns.empty() && m <= c) columns = {c};

  std::vector<Int4Way> ways;
  if (columns[0] <= 16 && int4_direct_serves(w)) add_direct(w, columns[0], device, &ways);
  if (device.sm == 90 && int4_wgmma_serves(w))
    for (auto c = columns.rbegin(); c != columns.rend(); ++c)
      for (const int resident : {2, 1}) {
        if (*c < 32) continue;                     // the direct kernel's, or mma's
        if (*c == 128 && resident == 2) continue;  // it takes all registers
        Int4Way way{.columns = *c, .wide = true, .wgmma = true};
        way.stages = stages_that_fit(w, way, resident, device);
        if (way.stages > 0) add_grids(w, m, way, resident, device, every, &ways);
      }
  for (const int c : columns)
    for (const bool wide : {false, true}) {
      if (c >= 64 && !wide) continue;
      for (const int resident : {2, 1}) {
        if (c >= 64 && resident == 2) continue;
        Int4Way way{.columns = c, .wide = wide};
        way.stages = stages_that_fit(w, way, resident, device);
        if (way.stages > 0) add_grids(w, m, way, resident, device, every, &ways);
      }
    }
  return ways;
}

}  // namespace cuvil
