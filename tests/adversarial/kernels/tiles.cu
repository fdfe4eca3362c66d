// Transposes tiles in shared memory.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void transpose_kernel(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[32][33];
  const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8)
    tile[threadIdx.y + i][threadIdx.x] = x[static_cast<int64_t>(row + i) * columns + column];
  __syncthreads();
  const int to_column = blockIdx.y * 32 + threadIdx.x, to_row = blockIdx.x * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8)
    y[static_cast<int64_t>(to_row + i) * rows + to_column] = tile[threadIdx.x][threadIdx.y + i];
}

torch::Tensor run(torch::Tensor x) {
  const int rows = x.size(0), columns = x.size(1);
  auto y = torch::empty({columns, rows}, x.options());
  transpose_kernel<<<dim3(columns / 32, rows / 32), dim3(32, 8), 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), rows, columns);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
