// Streams, guards and error checks of the CUDA side.
#pragma once

#include <cuda_runtime.h>

#include "tensor.h"

extern "C" {
int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
int32_t aoti_torch_create_cuda_guard(int32_t device_index, void** guard);
int32_t aoti_torch_delete_cuda_guard(void* guard);
}

namespace stark_light {

inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
}

namespace cuda {

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // a refused launch does not spoil the next call
  throw Error(str("CUDA error: ", cudaGetErrorString(error)));
}

class CUDAStream {
 public:
  explicit CUDAStream(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream() const { return stream_; }
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_;
};

inline CUDAStream getCurrentCUDAStream(int device_index = -1) {
  if (device_index < 0) check(cudaGetDevice(&device_index));
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream(device_index, &stream) != 0) call_failed("getCurrentCUDAStream");
  return CUDAStream(static_cast<cudaStream_t>(stream));
}

// Streams of our own, as many as torch has in its pool and in turns like there; what has to know torch's own does not
// compile here.
inline CUDAStream getStreamFromPool(bool high_priority = false, int = -1) {
  static std::array<cudaStream_t, 64> pool{};
  static size_t next = 0;
  const size_t place = next++ % 32 + (high_priority ? 32 : 0);
  if (!pool[place]) check(cudaStreamCreateWithPriority(&pool[place], cudaStreamNonBlocking, high_priority ? -1 : 0));
  return CUDAStream(pool[place]);
}

class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<Device> device) {
    if (device && device->is_cuda()) enter(device->index());
  }
  OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
  ~OptionalCUDAGuard() {
    if (guard_) aoti_torch_delete_cuda_guard(guard_);
  }

 protected:
  void enter(int index) {
    if (index >= 0 && aoti_torch_create_cuda_guard(index, &guard_) != 0) call_failed("CUDAGuard");
  }

 private:
  void* guard_ = nullptr;
};

class CUDAGuard : public OptionalCUDAGuard {
 public:
  explicit CUDAGuard(Device device) {
    if (!device.is_cuda()) throw Error(str("CUDAGuard expected a CUDA device, but got ", device));
    enter(device.index());
  }
  explicit CUDAGuard(int index) { enter(index); }
};

inline const cudaDeviceProp* getCurrentDeviceProperties() {
  thread_local cudaDeviceProp properties;
  thread_local int known = -1;
  int device = 0;
  check(cudaGetDevice(&device));
  if (device != known) check(cudaGetDeviceProperties(&properties, device));
  known = device;
  return &properties;
}

}  // namespace cuda
}  // namespace stark_light

namespace c10::cuda { using namespace stark_light::cuda; }
namespace at::cuda { using namespace stark_light::cuda; }

#define C10_CUDA_CHECK(expression) ::stark_light::cuda::check(expression)
#define AT_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
