#include "plan/group_order.h"

#include "core/error.h"

namespace cuvil {

GroupOrder order_by_group(const std::vector<int32_t>& group_of, int64_t groups, int size) {
  std::vector<std::vector<int32_t>> members(static_cast<size_t>(groups));
  for (size_t place = 0; place < group_of.size(); ++place) {
    const int32_t group = group_of[place];
    require(group >= 0 && group < groups, "the group of place ", place, " is ", group, "; [0, ", groups,
            ") is required");
    members[static_cast<size_t>(group)].push_back(static_cast<int32_t>(place));
  }
  GroupOrder order;
  order.size = size;
  for (size_t group = 0; group < members.size(); ++group) {
    for (size_t i = 0; i < members[group].size(); i += static_cast<size_t>(size)) {
      order.groups.push_back(static_cast<int32_t>(group));
      for (size_t j = i; j < i + static_cast<size_t>(size); ++j)
        order.places.push_back(j < members[group].size() ? members[group][j] : -1);
    }
  }
  return order;
}

int64_t power_of_two_in(int64_t n) { return n & -n; }

}  // namespace cuvil
