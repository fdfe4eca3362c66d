// A tensor as candidates use it: a counted reference to one of torch's own, reached through torch's C interface.
#pragma once

#include "abi.h"
#include "types.h"

namespace stark_light {

class Tensor;

template <class T, size_t N>
class TensorAccessor {
 public:
  TensorAccessor(T* data, const int64_t* sizes, const int64_t* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  decltype(auto) operator[](int64_t i) const {
    if constexpr (N == 1)
      return static_cast<T&>(data_[i * strides_[0]]);
    else
      return TensorAccessor<T, N - 1>(data_ + i * strides_[0], sizes_ + 1, strides_ + 1);
  }
  int64_t size(int64_t i) const { return sizes_[i]; }
  int64_t stride(int64_t i) const { return strides_[i]; }
  T* data() const { return data_; }

 private:
  T* data_;
  const int64_t* sizes_;
  const int64_t* strides_;
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle owned)
      : handle_(owned, [](AtenTensorHandle tensor) { aoti_torch_delete_tensor_object(tensor); }) {}

  AtenTensorHandle handle() const {
    if (!handle_) throw Error("an undefined tensor has no properties");
    return handle_.get();
  }
  bool defined() const { return handle_ && get<bool>(aoti_torch_is_defined); }
  int64_t dim() const { return get<int64_t>(aoti_torch_get_dim); }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { return get<int64_t>(aoti_torch_get_numel); }
  int64_t storage_offset() const { return get<int64_t>(aoti_torch_get_storage_offset); }
  IntArrayRef sizes() const { return {get<int64_t*>(aoti_torch_get_sizes), static_cast<size_t>(dim())}; }
  IntArrayRef strides() const { return {get<int64_t*>(aoti_torch_get_strides), static_cast<size_t>(dim())}; }
  int64_t size(int64_t i) const { return sizes()[wrap(i)]; }
  int64_t stride(int64_t i) const { return strides()[wrap(i)]; }
  bool is_contiguous() const { return get<bool>(aoti_torch_is_contiguous); }
  ScalarType scalar_type() const { return static_cast<ScalarType>(get<int32_t>(aoti_torch_get_dtype)); }
  ScalarType dtype() const { return scalar_type(); }
  size_t element_size() const { return elementSize(scalar_type()); }
  size_t itemsize() const { return element_size(); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * element_size(); }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  Device device() const {
    const auto type = static_cast<DeviceType>(get<int32_t>(aoti_torch_get_device_type));
    return Device(type, get<int32_t>(aoti_torch_get_device_index));
  }
  bool is_cuda() const { return device().is_cuda(); }
  bool is_cpu() const { return device().is_cpu(); }
  int64_t get_device() const { return device().index(); }
  TensorOptions options() const { return TensorOptions(scalar_type()).device(device()); }

  void* data_ptr() const { return get<void*>(aoti_torch_get_data_ptr); }
  const void* const_data_ptr() const { return data_ptr(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <class T>
  T* data_ptr() const {
    constexpr ScalarType wanted = CppTypeToScalarType<std::remove_const_t<T>>::value;
    if (scalar_type() != wanted) throw Error(str("expected scalar type ", wanted, " but found ", scalar_type()));
    return static_cast<T*>(data_ptr());
  }
  template <class T>
  const T* const_data_ptr() const { return data_ptr<std::remove_const_t<T>>(); }
  template <class T>
  T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const {
    if (dim() != static_cast<int64_t>(N)) throw Error(str("TensorAccessor expected ", N, " dims but tensor has ", dim()));
    return {data_ptr<T>(), sizes().data(), strides().data()};
  }
  template <class T>
  T item() const {
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(get<double>(aoti_torch_item_float64));
    else
      return static_cast<T>(get<int64_t>(aoti_torch_item_int64));
  }

  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(ScalarType type) const;
  Tensor to(Device device) const;
  Tensor view(IntArrayRef sizes) const;
  Tensor reshape(IntArrayRef sizes) const;
  Tensor expand(IntArrayRef sizes) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor unsqueeze(int64_t dim) const;
  Tensor squeeze(int64_t dim) const;
  Tensor flatten(int64_t from = 0, int64_t to = -1) const;
  const Tensor& zero_() const;
  template <class Number>
  const Tensor& fill_(Number value) const;
  const Tensor& copy_(const Tensor& source, bool non_blocking = false) const;

 private:
  template <class T>
  T get(int32_t (*read)(AtenTensorHandle, T*)) const {
    T value{};
    if (read(handle(), &value) != 0) call_failed("reading a property of a tensor");
    return value;
  }
  size_t wrap(int64_t i) const {
    const int64_t rank = dim();
    if (i < -rank || i >= rank)
      throw IndexError(str("Dimension out of range (expected to be in range of [", -rank, ", ", rank - 1,
                           "], but got ", i, ")"));
    return static_cast<size_t>(i < 0 ? i + rank : i);
  }

  std::shared_ptr<AtenTensorOpaque> handle_;
};

// Arguments of an operator; tensors and lists are handed over, the rest are plain bits.
inline uint64_t argument(const Tensor& tensor) {
  AtenTensorHandle copy = nullptr;
  if (aoti_torch_new_tensor_handle(tensor.handle(), &copy) != 0) call_failed("passing a tensor");
  return reinterpret_cast<uint64_t>(copy);
}
inline uint64_t argument(int64_t value) { return static_cast<uint64_t>(value); }
inline uint64_t argument(std::nullopt_t) { return 0; }
inline uint64_t argument(IntArrayRef values) {
  StableListHandle list = nullptr;
  if (torch_new_list_reserve_size(values.size(), &list) != 0) call_failed("passing a list");
  for (int64_t value : values) torch_list_push_back(list, static_cast<uint64_t>(value));
  return reinterpret_cast<uint64_t>(list);
}
template <class... Arguments>
Tensor call(const char* name, const char* overload, const Arguments&... arguments) {
  uint64_t stack[] = {argument(arguments)...};
  if (aoti_torch_call_dispatcher(name, overload, stack) != 0) call_failed(name);
  return Tensor(reinterpret_cast<AtenTensorHandle>(stack[0]));
}

inline Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options = {}) {
  AtenTensorHandle made = nullptr;
  const Device device = options.device();
  const int32_t failed = aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), static_cast<int32_t>(options.dtype()),
      static_cast<int32_t>(device.type()), device.index(), &made);
  if (failed)  // for the one ordinary reason, in torch's words for it
    call_failed(device.is_cuda() ? "CUDA out of memory: torch::empty" : "can't allocate memory: torch::empty");
  Tensor tensor(made);
  if (options.requires_grad()) torch_set_requires_grad(made, true);
  return tensor;
}
inline Tensor empty(IntArrayRef sizes, TensorOptions options = {}) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= std::max<int64_t>(sizes[i], 1)) {
    if (sizes[i] < 0) throw Error(str("Trying to create tensor with negative dimension ", sizes[i], ": ", sizes));
    strides[i] = stride;
  }
  return empty_strided(sizes, strides, options);
}
inline TensorOptions filled_in(TensorOptions options, const Tensor& like) {
  if (!options.has_dtype()) options = options.dtype(like.scalar_type());
  return options.has_device() ? options : options.device(like.device());
}
inline Tensor empty_like(const Tensor& like, TensorOptions options = {}) {
  options = filled_in(options, like);
  if (like.is_contiguous()) return empty_strided(like.sizes(), like.strides(), options);
  // Which strides a tensor with gaps passes on is torch's own affair.
  constexpr auto none = std::nullopt;
  const Tensor dense = call("aten::empty_like", "", like, none, none, none, none, none);
  return empty_strided(dense.sizes(), dense.strides(), options);
}

inline const Tensor& Tensor::zero_() const {
  if (aoti_torch_zero_(handle()) != 0) call_failed("zero_");
  return *this;
}
template <class Number>
const Tensor& Tensor::fill_(Number value) const {
  AtenTensorHandle scalar = nullptr;
  if constexpr (std::is_integral_v<Number>)
    aoti_torch_scalar_to_tensor_int64(static_cast<int64_t>(value), &scalar);
  else
    aoti_torch_scalar_to_tensor_float64(static_cast<double>(value), &scalar);
  call("aten::fill_", "Tensor", *this, Tensor(scalar));
  return *this;
}
inline const Tensor& Tensor::copy_(const Tensor& source, bool non_blocking) const {
  if (aoti_torch_copy_(handle(), source.handle(), non_blocking) != 0) call_failed("copy_");
  return *this;
}
inline Tensor zeros(IntArrayRef sizes, TensorOptions options = {}) { return empty(sizes, options).zero_(); }
inline Tensor zeros_like(const Tensor& like, TensorOptions options = {}) { return empty_like(like, options).zero_(); }
inline Tensor ones(IntArrayRef sizes, TensorOptions options = {}) { return empty(sizes, options).fill_(1); }
inline Tensor ones_like(const Tensor& like, TensorOptions options = {}) { return empty_like(like, options).fill_(1); }
template <class Number>
Tensor full(IntArrayRef sizes, Number value, TensorOptions options = {}) {
  constexpr ScalarType own =
      std::is_same_v<Number, bool> ? kBool : std::is_integral_v<Number> ? kLong : kFloat;
  return empty(sizes, options.has_dtype() ? options : options.dtype(own)).fill_(value);
}
template <class Number>
Tensor full_like(const Tensor& like, Number value, TensorOptions options = {}) {
  return empty_like(like, options).fill_(value);
}

inline Tensor Tensor::contiguous() const {
  return is_contiguous() ? *this : Tensor(empty(sizes(), options()).copy_(*this));
}
inline Tensor Tensor::clone() const {
  AtenTensorHandle made = nullptr;
  if (aoti_torch_clone(handle(), &made) != 0) call_failed("clone");
  return Tensor(made);
}
inline Tensor Tensor::to(ScalarType type) const {
  return type == scalar_type() ? *this : Tensor(empty_like(*this, options().dtype(type)).copy_(*this));
}
inline Tensor Tensor::to(Device where) const {
  const bool here = where == device() || (where.type() == device().type() && !where.has_index());
  return here ? *this : Tensor(empty_like(*this, options().device(where)).copy_(*this));
}
inline Tensor Tensor::view(IntArrayRef sizes) const { return call("aten::view", "", *this, sizes); }
inline Tensor Tensor::reshape(IntArrayRef sizes) const { return call("aten::reshape", "", *this, sizes); }
inline Tensor Tensor::expand(IntArrayRef sizes) const { return call("aten::expand", "", *this, sizes, int64_t{0}); }
inline Tensor Tensor::transpose(int64_t a, int64_t b) const { return call("aten::transpose", "int", *this, a, b); }
inline Tensor Tensor::t() const { return call("aten::t", "", *this); }
inline Tensor Tensor::select(int64_t d, int64_t index) const { return call("aten::select", "int", *this, d, index); }
inline Tensor Tensor::unsqueeze(int64_t d) const { return call("aten::unsqueeze", "", *this, d); }
inline Tensor Tensor::squeeze(int64_t d) const { return call("aten::squeeze", "dim", *this, d); }
inline Tensor Tensor::flatten(int64_t from, int64_t to) const {
  return call("aten::flatten", "using_ints", *this, from, to);
}

#define STARK_LIGHT_UNARY(name) \
  inline Tensor name(const Tensor& self) { return call("aten::" #name, "", self); }
STARK_LIGHT_UNARY(relu) STARK_LIGHT_UNARY(sigmoid) STARK_LIGHT_UNARY(tanh) STARK_LIGHT_UNARY(exp)
STARK_LIGHT_UNARY(sqrt) STARK_LIGHT_UNARY(rsqrt) STARK_LIGHT_UNARY(abs) STARK_LIGHT_UNARY(neg)
#undef STARK_LIGHT_UNARY
#define STARK_LIGHT_BINARY(name) \
  inline Tensor name(const Tensor& self, const Tensor& other) { return call("aten::" #name, "", self, other); }
STARK_LIGHT_BINARY(matmul) STARK_LIGHT_BINARY(mm) STARK_LIGHT_BINARY(bmm) STARK_LIGHT_BINARY(mv)
#undef STARK_LIGHT_BINARY

template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, const Body& body) {
  const auto run = [](int64_t from, int64_t to, void* own) { (*static_cast<const Body*>(own))(from, to); };
  void* own = const_cast<void*>(static_cast<const void*>(&body));
  if (torch_parallel_for(begin, end, grain_size, run, own) != 0) call_failed("parallel_for");
}
inline int get_num_threads() {
  uint32_t count = 1;
  torch_get_num_threads(&count);
  return static_cast<int>(count);
}
inline int get_thread_num() {
  uint32_t number = 0;
  torch_get_thread_idx(&number);
  return static_cast<int>(number);
}

}  // namespace stark_light

#include "dispatch.h"
