// Half of the work on a stream that torch does not know, behind the current one and before it again.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void negate_kernel(const float* x, float* y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = -x[i];
}

torch::Tensor run(torch::Tensor x) {
  static cudaStream_t side = nullptr;
  static cudaEvent_t fork, join;
  if (side == nullptr) {
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  }
  cudaStream_t current = at::cuda::getCurrentCUDAStream();
  auto y = torch::empty_like(x);
  const int64_t half = x.numel() / 2, rest = x.numel() - half;
  C10_CUDA_CHECK(cudaEventRecord(fork, current));
  C10_CUDA_CHECK(cudaStreamWaitEvent(side, fork, 0));
  negate_kernel<<<(half + 255) / 256, 256, 0, side>>>(x.data_ptr<float>(), y.data_ptr<float>(), half);
  negate_kernel<<<(rest + 255) / 256, 256, 0, current>>>(x.data_ptr<float>() + half, y.data_ptr<float>() + half, rest);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  C10_CUDA_CHECK(cudaEventRecord(join, side));
  C10_CUDA_CHECK(cudaStreamWaitEvent(current, join, 0));
  return y;
}
