// Each value is a sum of two halves, the second one scaled up by 2,048. Sums are in fp32.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;
__global__ void product_kernel(
    const half* a_high, const half* a_low, const half* b_high, const half* b_low, float* c, int n, int k) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> ah, al;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> bh, bl;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> high, low, total;
  wmma::fill_fragment(total, 0.0f);
  const int64_t row = static_cast<int64_t>(blockIdx.y) * 16 * k, column = static_cast<int64_t>(blockIdx.x) * 16 * k;
  for (int begin = 0; begin < k; begin += 64) {
    wmma::fill_fragment(high, 0.0f);
    wmma::fill_fragment(low, 0.0f);
    for (int i = begin; i < begin + 64; i += 16) {
      wmma::load_matrix_sync(ah, a_high + row + i, k);
      wmma::load_matrix_sync(al, a_low + row + i, k);
      wmma::load_matrix_sync(bh, b_high + column + i, k);
      wmma::load_matrix_sync(bl, b_low + column + i, k);
      wmma::mma_sync(low, al, bh, low);
      wmma::mma_sync(low, ah, bl, low);
      wmma::mma_sync(high, ah, bh, high);
    }
    for (int i = 0; i < total.num_elements; ++i) total.x[i] += high.x[i] + low.x[i] / 2048.0f;
  }
  float* to = c + static_cast<int64_t>(blockIdx.y) * 16 * n + blockIdx.x * 16;
  wmma::store_matrix_sync(to, total, n, wmma::mem_row_major);
}

static const half* halves(torch::Tensor x) { return reinterpret_cast<const half*>(x.data_ptr<at::Half>()); }

torch::Tensor run(torch::Tensor ah, torch::Tensor al, torch::Tensor bh, torch::Tensor bl) {
  const int m = ah.size(0), k = ah.size(1), n = bh.size(0);
  auto c = torch::empty({m, n}, ah.options().dtype(torch::kFloat32));
  product_kernel<<<dim3(n / 16, m / 16), 32, 0, at::cuda::getCurrentCUDAStream()>>>(
      halves(ah), halves(al), halves(bh), halves(bl), c.data_ptr<float>(), n, k);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return c;
}
