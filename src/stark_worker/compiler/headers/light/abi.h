// The part of torch's C interface that the light headers stand on. It is declared here, and not included, because
// torch's own declarations bring in a second of C++ with them. All of it is in torch 2.10 and later.
#pragma once

#include <cstddef>
#include <cstdint>

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;

extern "C" {
int32_t aoti_torch_delete_tensor_object(AtenTensorHandle);
int32_t aoti_torch_new_tensor_handle(AtenTensorHandle, AtenTensorHandle*);
int32_t aoti_torch_is_defined(AtenTensorHandle, bool*);
int32_t aoti_torch_get_data_ptr(AtenTensorHandle, void**);
int32_t aoti_torch_get_dim(AtenTensorHandle, int64_t*);
int32_t aoti_torch_get_numel(AtenTensorHandle, int64_t*);
int32_t aoti_torch_get_sizes(AtenTensorHandle, int64_t**);
int32_t aoti_torch_get_strides(AtenTensorHandle, int64_t**);
int32_t aoti_torch_get_dtype(AtenTensorHandle, int32_t*);
int32_t aoti_torch_get_device_type(AtenTensorHandle, int32_t*);
int32_t aoti_torch_get_device_index(AtenTensorHandle, int32_t*);
int32_t aoti_torch_get_storage_offset(AtenTensorHandle, int64_t*);
int32_t aoti_torch_is_contiguous(AtenTensorHandle, bool*);
int32_t aoti_torch_empty_strided(
    int64_t, const int64_t*, const int64_t*, int32_t dtype, int32_t device_type, int32_t device_index,
    AtenTensorHandle*);
int32_t aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle source, int32_t non_blocking);
int32_t aoti_torch_clone(AtenTensorHandle, AtenTensorHandle*);
int32_t aoti_torch_zero_(AtenTensorHandle);
int32_t aoti_torch_scalar_to_tensor_float64(double, AtenTensorHandle*);
int32_t aoti_torch_scalar_to_tensor_int64(int64_t, AtenTensorHandle*);
int32_t aoti_torch_item_float64(AtenTensorHandle, double*);
int32_t aoti_torch_item_int64(AtenTensorHandle, int64_t*);
int32_t aoti_torch_call_dispatcher(const char* name, const char* overload, uint64_t* stack);
int32_t torch_new_list_reserve_size(size_t, StableListHandle*);
int32_t torch_list_push_back(StableListHandle, uint64_t);
int32_t torch_set_requires_grad(AtenTensorHandle, bool);
int32_t torch_parallel_for(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*);
int32_t torch_get_num_threads(uint32_t*);
int32_t torch_get_thread_idx(uint32_t*);
#if STARK_LIGHT_TORCH >= 213
const char* torch_exception_get_what_without_backtrace();
#endif
}
