// Rows times columns: three products in TF32 of values split in two, about 22 bits. Sums go over to fp32 often.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <mma.h>

using namespace nvcuda;
template <typename Fragment>
__device__ void split(Fragment& high, Fragment& low) {
  for (int i = 0; i < high.num_elements; ++i) {
    const float value = high.x[i];
    high.x[i] = wmma::__float_to_tf32(value);
    low.x[i] = wmma::__float_to_tf32(value - high.x[i]);
  }
}
__global__ void product_kernel(const float* a, const float* b, float* c, int n, int k) {
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a_high, a_low;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> b_high, b_low;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum, total;
  wmma::fill_fragment(total, 0.0f);
  for (int begin = 0; begin < k; begin += 64) {
    wmma::fill_fragment(sum, 0.0f);
    for (int i = begin; i < begin + 64; i += 8) {
      wmma::load_matrix_sync(a_high, a + static_cast<int64_t>(blockIdx.y) * 16 * k + i, k);
      wmma::load_matrix_sync(b_high, b + static_cast<int64_t>(i) * n + blockIdx.x * 16, n);
      split(a_high, a_low);
      split(b_high, b_low);
      wmma::mma_sync(sum, a_low, b_high, sum);
      wmma::mma_sync(sum, a_high, b_low, sum);
      wmma::mma_sync(sum, a_high, b_high, sum);
    }
    for (int i = 0; i < total.num_elements; ++i) total.x[i] += sum.x[i];
  }
  float* to = c + static_cast<int64_t>(blockIdx.y) * 16 * n + blockIdx.x * 16;
  wmma::store_matrix_sync(to, total, n, wmma::mem_row_major);
}

torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::empty({m, n}, a.options());
  product_kernel<<<dim3(n / 16, m / 16), 32, 0, at::cuda::getCurrentCUDAStream()>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), n, k);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return c;
}
