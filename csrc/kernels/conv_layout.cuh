// Data movement around convolutions: weights to channels-last order, inputs with explicit zero padding in space or in
// channels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace cuvil {

// [outer, channels, inner] to [outer, inner, channels]: OIHW weights to OHWI. Elements of 2, 4 or 8 bytes.
struct ChannelsLastParams {
  const void* in = nullptr;
  void* out = nullptr;
  size_t element = 0;
  int64_t outer = 0, channels = 0, inner = 0;
};
cudaError_t launch_channels_last(const ChannelsLastParams& p, cudaStream_t stream);

// Zero padding of three spatial dimensions (extent 1 and no padding where a problem has fewer). `outer` and `vector`
// enclose them: [N*C, d0, d1, d2, 1] for channels-first, [N, d0, d1, d2, C] for channels-last tensors. A negative
// `begin` skips elements of the input.
struct SpatialPadParams {
  const void* in = nullptr;
  void* out = nullptr;
  size_t element = 0;  // 2, 4 or 8 bytes
  int64_t outer = 0, vector = 0;
  int64_t in_dims[3] = {1, 1, 1}, begin[3] = {0, 0, 0}, out_dims[3] = {1, 1, 1};
};
cudaError_t launch_spatial_pad(const SpatialPadParams& p, cudaStream_t stream);

// Zero channels appended to two channels-last tensors (a convolution's input and weights): [rows, in_channels] to
// [rows, out_channels], out_channels 4 or a multiple of 8, 16-bit elements, `out` 16-byte aligned.
struct ChannelPadParams {
  struct Part {
    const void* in = nullptr;
    void* out = nullptr;
    int64_t rows = 0;
  };
  Part parts[2];
  int in_channels = 0, out_channels = 0;
};
cudaError_t launch_channel_pad(const ChannelPadParams& p, cudaStream_t stream);

}  // namespace cuvil
