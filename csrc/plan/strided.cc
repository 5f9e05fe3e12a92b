#include "plan/strided.h"

namespace cuvil::plan {

Dims contiguous_strides(const Dims& shape) {
  Dims strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

View collapse(const View& view) {
  View out;
  out.offset = view.offset;
  for (size_t i = 0; i < static_cast<size_t>(view.rank); ++i) {
    if (view.extent[i] == 1) continue;
    const size_t last = static_cast<size_t>(out.rank) - 1;
    if (out.rank > 0 && out.stride[last] == view.stride[i] * view.extent[i]) {
      out.extent[last] *= view.extent[i];
      out.stride[last] = view.stride[i];
    } else {
      out.push_back(view.extent[i], view.stride[i]);
    }
  }
  if (out.rank == 0) out.push_back(1, 1);
  return out;
}

bool is_contiguous(const View& view) { return view.rank == 1 && (view.stride[0] == 1 || view.extent[0] == 1); }

int widen(View* view, int size, uintptr_t input, uintptr_t output) {
  const size_t inner = static_cast<size_t>(view->rank) - 1;
  if (view->stride[inner] != 1) return size;
  int64_t factor = 16 / size;
  for (; factor > 1; factor /= 2) {
    const uintptr_t bytes = static_cast<uintptr_t>(factor) * static_cast<uintptr_t>(size);
    bool fits =
        view->extent[inner] % factor == 0 && view->offset % factor == 0 && input % bytes == 0 && output % bytes == 0;
    for (size_t i = 0; i < inner; ++i) fits = fits && view->stride[i] % factor == 0;
    if (fits) break;
  }
  view->extent[inner] /= factor;
  view->offset /= factor;
  for (size_t i = 0; i < inner; ++i) view->stride[i] /= factor;
  return size * static_cast<int>(factor);
}

int transposed_dim(const View& view) {
  if (view.stride[static_cast<size_t>(view.rank - 1)] == 1) return -1;
  for (int i = 0; i + 1 < view.rank; ++i)
    if (view.stride[static_cast<size_t>(i)] == 1) return i;
  return -1;
}

}  // namespace cuvil::plan
