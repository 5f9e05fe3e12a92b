// Owner of one cuDNN backend descriptor.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "libs/cudnn.h"

namespace cuvil {

class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type) {
    CUVIL_CUDNN(libs::cudnn().create_descriptor(type, &raw_));
  }
  ~CudnnDescriptor() {
    if (raw_) libs::cudnn().destroy_descriptor(raw_);
  }
  CudnnDescriptor(CudnnDescriptor&& o) noexcept : raw_(std::exchange(o.raw_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& o) noexcept {
    std::swap(raw_, o.raw_);
    return *this;
  }

  cudnnBackendDescriptor_t raw() const { return raw_; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    CUVIL_CUDNN(libs::cudnn().set_attribute(raw_, name, type, count, values));
  }
  template <typename T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.raw_);
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
  }
  void finalize() { CUVIL_CUDNN(libs::cudnn().finalize(raw_)); }

  // Up to `capacity` values into `out`; the number that there are.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t capacity, void* out) const {
    int64_t count = 0;
    CUVIL_CUDNN(libs::cudnn().get_attribute(raw_, name, type, capacity, &count, out));
    return count;
  }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

}  // namespace cuvil
