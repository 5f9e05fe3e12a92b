#include "ep/data_transfer.h"

#include <cstring>

#include "ep/status.h"

namespace cuvil::ep {
namespace {

bool is_ours(const OrtMemoryDevice* d) {
  return ep_api().MemoryDevice_GetDeviceType(d) == OrtMemoryInfoDeviceType_GPU &&
         ep_api().MemoryDevice_GetVendorId(d) == kVendorId;
}

bool on_gpu(const OrtMemoryDevice* d) {
  return is_ours(d) && ep_api().MemoryDevice_GetMemoryType(d) == OrtDeviceMemoryType_DEFAULT;
}

bool on_host(const OrtMemoryDevice* d) {
  return ep_api().MemoryDevice_GetDeviceType(d) == OrtMemoryInfoDeviceType_CPU || (is_ours(d) && !on_gpu(d));
}

int id_of(const OrtMemoryDevice* d) { return static_cast<int>(ep_api().MemoryDevice_GetDeviceId(d)); }

// Memory of the session whose stream should carry the copy.
std::shared_ptr<SessionMemory> session_of(DeviceContext& device, const void* dst, bool dst_on_gpu, const void* src,
                                          bool src_on_gpu) {
  std::shared_ptr<SessionMemory> owner = dst_on_gpu ? device.owner_of(dst) : nullptr;
  std::shared_ptr<SessionMemory> source = src_on_gpu ? device.owner_of(src) : nullptr;
  if (dst_on_gpu && src_on_gpu && owner != source) return nullptr;  // two streams: wait for both
  return owner ? owner : source;
}

// Copies from page-locked memory return before the memory was read. Blocks of our own arena wait for that when they are
// freed; the application's memory cannot.
bool is_foreign_pinned(DeviceContext& device, const void* host) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    cudaGetLastError();
    return true;
  }
  return attributes.type != cudaMemoryTypeUnregistered && !device.pinned_arena().owns(host);
}

}  // namespace

void copy_on(DeviceContext& device, cudaStream_t stream, void* dst, bool dst_on_gpu, const void* src, bool src_on_gpu,
             size_t bytes, bool wait) {
  if (!src_on_gpu) device.pinned_arena().note_async_use(src);
  if (!dst_on_gpu) device.pinned_arena().note_async_use(dst);
  CUVIL_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream));
  if (wait && (!dst_on_gpu || (!src_on_gpu && is_foreign_pinned(device, src))))
    CUVIL_CUDA(cudaStreamSynchronize(stream));
}

void copy(DeviceContext& device, void* dst, bool dst_on_gpu, const void* src, bool src_on_gpu, size_t bytes) {
  const DeviceGuard guard(device.info().id);
  if (const ComputeStream* captured = ComputeStream::captured_by_this_thread(); captured && dst_on_gpu && src_on_gpu)
    return copy_on(device, captured->handle, dst, true, src, true, bytes, /*wait=*/false);
  const std::shared_ptr<SessionMemory> session = session_of(device, dst, dst_on_gpu, src, src_on_gpu);
  const std::shared_ptr<ComputeStream> stream = session ? session->stream.load() : nullptr;
  if (!stream) {
    require(!ComputeStream::captured_by_this_thread(), "a copy between host and GPU cannot be part of a CUDA graph");
    device.synchronize_streams();
    CUVIL_CUDA(cudaMemcpy(dst, src, bytes, cudaMemcpyDefault));
    // It returns when `src` may change: what goes to the device may still be on its way, and streams of the EP do not
    // wait for the default stream.
    if (dst_on_gpu) CUVIL_CUDA(cudaStreamSynchronize(nullptr));
    return;
  }
  if (stream->capturing() && !(dst_on_gpu && src_on_gpu))
    fail(ErrorKind::kInvalidArgument,
         "a copy between host and GPU happened while the run was being captured into a CUDA graph, which would replay "
         "the old host address. With enable_cuda_graph=1, bind inputs and outputs in device memory (I/O binding), or "
         "set the run option gpu_graph_id=-1 for this run");
  copy_on(device, stream->handle, dst, dst_on_gpu, src, src_on_gpu, bytes, /*wait=*/true);
}

DataTransfer::DataTransfer(std::function<DeviceContext&(int)> context_of)
    : OrtDataTransferImpl{}, context_of_(std::move(context_of)) {
  ort_version_supported = ORT_API_VERSION;
  Release = [](OrtDataTransferImpl* self) noexcept { delete static_cast<DataTransfer*>(self); };
  CanCopy = [](const OrtDataTransferImpl*, const OrtMemoryDevice* src, const OrtMemoryDevice* dst) noexcept -> bool {
    return (is_ours(src) || is_ours(dst)) && (on_gpu(src) || on_host(src)) && (on_gpu(dst) || on_host(dst));
  };
  CopyTensors = [](OrtDataTransferImpl* self, const OrtValue** src, OrtValue** dst, OrtSyncStream** streams,
                   size_t count) noexcept -> OrtStatus* {
    return guarded([&] { static_cast<DataTransfer*>(self)->copy_tensors(src, dst, streams, count); });
  };
}

void DataTransfer::copy_tensors(const OrtValue** src, OrtValue** dst, OrtSyncStream** streams, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const OrtMemoryDevice* from = ep_api().Value_GetMemoryDevice(src[i]);
    const OrtMemoryDevice* to = ep_api().Value_GetMemoryDevice(dst[i]);
    size_t bytes = 0;
    ort_check(api().GetTensorSizeInBytes(src[i], &bytes));
    const void* source = nullptr;
    void* target = nullptr;
    ort_check(api().GetTensorData(src[i], &source));
    ort_check(api().GetTensorMutableData(dst[i], &target));
    if (bytes == 0) continue;
    if (!source || !target) {
      const std::string failure = Arena::take_last_failure();
      fail(ErrorKind::kOutOfMemory, "no memory for a copy of ", bytes, " bytes", failure.empty() ? "" : ": ", failure);
    }
    if (!on_gpu(from) && !on_gpu(to)) {
      std::memcpy(target, source, bytes);
      continue;
    }
    DeviceContext& device = context_of_(id_of(on_gpu(to) ? to : from));
    if (on_gpu(from) && on_gpu(to) && id_of(from) != id_of(to)) context_of_(id_of(from)).synchronize_streams();
    if (streams && streams[i]) {
      const DeviceGuard guard(device.info().id);
      const auto stream = static_cast<cudaStream_t>(api().SyncStream_GetHandle(streams[i]));
      copy_on(device, stream, target, on_gpu(to), source, on_gpu(from), bytes, /*wait=*/false);
    } else {
      copy(device, target, on_gpu(to), source, on_gpu(from), bytes);
    }
  }
}

}  // namespace cuvil::ep
