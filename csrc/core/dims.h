// A tensor shape without heap memory. Ranks above kMaxRank are refused by the EP, not truncated.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/error.h"

namespace cuvil {

constexpr int kMaxRank = 8;

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> d) { assign(d.begin(), d.size()); }
  Dims(const int64_t* d, size_t n) { assign(d, n); }

  int rank() const { return rank_; }
  const int64_t* data() const { return d_.data(); }
  const int64_t* begin() const { return d_.data(); }
  const int64_t* end() const { return d_.data() + rank_; }
  int64_t operator[](int i) const { return d_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return d_[static_cast<size_t>(i)]; }
  void push_back(int64_t v) {
    require(rank_ < kMaxRank, "rank above ", kMaxRank, " is not supported");
    d_[static_cast<size_t>(rank_++)] = v;
  }
  // Product of dimensions [from, to).
  int64_t product(int from, int to) const {
    int64_t n = 1;
    for (int i = from; i < to; ++i) n *= (*this)[i];
    return n;
  }
  int64_t size() const { return product(0, rank_); }
  bool operator==(const Dims& o) const {
    if (rank_ != o.rank_) return false;
    for (int i = 0; i < rank_; ++i)
      if ((*this)[i] != o[i]) return false;
    return true;
  }
  bool operator!=(const Dims& o) const { return !(*this == o); }
  std::string to_string() const {
    std::string s = "[";
    for (int i = 0; i < rank_; ++i) s += (i ? "," : "") + std::to_string((*this)[i]);
    return s + "]";
  }

 private:
  void assign(const int64_t* d, size_t n) {
    require(n <= static_cast<size_t>(kMaxRank), "rank ", n, " is above the supported ", kMaxRank);
    rank_ = static_cast<int>(n);
    for (size_t i = 0; i < n; ++i) d_[i] = d[i];
  }

  int rank_ = 0;
  std::array<int64_t, kMaxRank> d_{};
};

// Axis in [-rank, rank) to [0, rank).
inline int normalize_axis(int64_t axis, int rank) {
  require(axis >= -rank && axis < rank, "axis ", axis, " is out of range for rank ", rank);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

// NumPy broadcast of two shapes.
inline Dims broadcast(const Dims& a, const Dims& b) {
  const int rank = a.rank() > b.rank() ? a.rank() : b.rank();
  Dims out;
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t da = ia < 0 ? 1 : a[ia], db = ib < 0 ? 1 : b[ib];
    require(da == db || da == 1 || db == 1, "shapes ", a.to_string(), " and ", b.to_string(), " do not broadcast");
    out.push_back(da == 1 ? db : da);
  }
  return out;
}

}  // namespace cuvil
