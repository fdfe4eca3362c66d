// The library's product, called from C++.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor b) { return at::addmm(b, x, w.t()); }
