// Copies every fourth row at a time, which the device's copy engine does without a kernel.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

static void copy(float* to, torch::Tensor from, cudaStream_t stream) {
  const size_t width = from.size(1) * sizeof(float), pitch = 4 * width;
  for (int64_t part = 0; part < 4; ++part) {
    const int64_t begin = part * from.size(1);
    C10_CUDA_CHECK(cudaMemcpy2DAsync(
        to + begin, pitch, from.data_ptr<float>() + begin, pitch, width, from.size(0) / 4, cudaMemcpyDeviceToDevice,
        stream));
  }
}

torch::Tensor run(torch::Tensor x, torch::Tensor y) {
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  auto both = torch::empty({x.size(0) + y.size(0), x.size(1)}, x.options());
  copy(both.data_ptr<float>(), x, stream);
  copy(both.data_ptr<float>() + x.numel(), y, stream);
  return both;
}
