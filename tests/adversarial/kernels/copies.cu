// Copies by the device's own copies.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

torch::Tensor run(torch::Tensor x, torch::Tensor y) {
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  auto both = torch::empty({x.size(0) + y.size(0), x.size(1)}, x.options());
  float* to = both.data_ptr<float>();
  C10_CUDA_CHECK(cudaMemcpyAsync(to, x.data_ptr<float>(), x.nbytes(), cudaMemcpyDeviceToDevice, stream));
  C10_CUDA_CHECK(cudaMemcpyAsync(to + x.numel(), y.data_ptr<float>(), y.nbytes(), cudaMemcpyDeviceToDevice, stream));
  return both;
}
