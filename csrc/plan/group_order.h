// The order in which weights are summed when their groups do not lie one after the other in powers of two.
#pragma once

#include <cstdint>
#include <vector>

namespace cuvil {

struct GroupOrder {
  int size = 0;                 // places of each packed group, a power of two
  std::vector<int32_t> places;  // for each packed place the original one, -1 for none; whole groups
  std::vector<int32_t> groups;  // for each packed group the original one
};

// `group_of`: the group of each place, in [0, groups). Places of a group are brought together, in their order, and each
// group filled up to packed ones of `size`.
GroupOrder order_by_group(const std::vector<int32_t>& group_of, int64_t groups, int size);

// The largest power of two that divides n > 0.
int64_t power_of_two_in(int64_t n);

}  // namespace cuvil
