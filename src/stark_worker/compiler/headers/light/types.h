// Element types, devices, sizes, options and errors, with the names and numbers that torch gives them.
#pragma once

#include "abi.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

// Reading these takes nvcc a quarter of the time, and most candidates have no use for them.
#ifdef STARK_LIGHT_HALF
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#else
namespace c10 {
struct Half;
struct BFloat16;
}
#endif

namespace stark_light {

using c10::BFloat16;
using c10::Half;
using std::make_optional;
using std::nullopt;
using std::optional;

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Python has exceptions of its own for these two.
class NotImplementedError : public Error {
 public:
  using Error::Error;
};
class IndexError : public Error {
 public:
  using Error::Error;
};

template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (void)(out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] inline void check_fail(const char* condition, const Parts&... parts) {
  if constexpr (sizeof...(Parts) == 0)
    throw Error(str("Expected ", condition, " to be true, but got false."));
  else
    throw Error(str(parts...));
}

// What torch said about the call that failed, where this version of it tells.
[[noreturn]] inline void call_failed(const std::string& what) {
#if STARK_LIGHT_TORCH >= 213
  const char* why = torch_exception_get_what_without_backtrace();
  if (why && *why) throw Error(why);
#endif
  throw Error(what + " failed");
}

enum class ScalarType : int8_t {
  Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Half = 5, Float = 6, Double = 7, Bool = 11, BFloat16 = 15,
  Undefined = 127
};
using Dtype = ScalarType;

#define STARK_LIGHT_TYPES(_)                                                                                     \
  _(uint8_t, Byte) _(int8_t, Char) _(int16_t, Short) _(int, Int) _(int64_t, Long) _(::c10::Half, Half)           \
  _(float, Float) _(double, Double) _(bool, Bool) _(::c10::BFloat16, BFloat16)

template <class T>
struct CppTypeToScalarType;
template <ScalarType S>
struct ScalarTypeToCppType;
#define STARK_LIGHT_MAP(type, name)                                                                              \
  template <> struct CppTypeToScalarType<type> { static constexpr ScalarType value = ScalarType::name; };        \
  template <> struct ScalarTypeToCppType<ScalarType::name> { using type_t = type; using t = type; };             \
  constexpr ScalarType k##name = ScalarType::name;
STARK_LIGHT_TYPES(STARK_LIGHT_MAP)
#undef STARK_LIGHT_MAP

constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong;
constexpr ScalarType kF16 = kHalf, kF32 = kFloat, kF64 = kDouble;
constexpr ScalarType kFloat16 = kHalf, kFloat32 = kFloat, kFloat64 = kDouble;

inline const char* toString(ScalarType type) {
  switch (type) {
#define STARK_LIGHT_NAME(_, name) case ScalarType::name: return #name;
    STARK_LIGHT_TYPES(STARK_LIGHT_NAME)
#undef STARK_LIGHT_NAME
    default: return "another type";
  }
}
inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }

inline size_t elementSize(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Bool: return 1;
    case ScalarType::Short: case ScalarType::Half: case ScalarType::BFloat16: return 2;
    case ScalarType::Int: case ScalarType::Float: return 4;
    case ScalarType::Long: case ScalarType::Double: return 8;
    default: throw Error("the size of this element type is not known");
  }
}
inline bool isFloatingType(ScalarType t) { return t == kFloat || t == kDouble || t == kHalf || t == kBFloat16; }

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
using DeviceIndex = int8_t;

class Device {
 public:
  Device(DeviceType type, int index = -1) : type_(type), index_(static_cast<DeviceIndex>(index)) {}
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ >= 0; }
  bool is_cuda() const { return type_ == kCUDA; }
  bool is_cpu() const { return type_ == kCPU; }
  std::string str() const {
    return std::string(is_cuda() ? "cuda" : "cpu") + (has_index() ? ":" + std::to_string(index_) : "");
  }
  bool operator==(const Device& other) const { return type_ == other.type_ && index_ == other.index_; }
  bool operator!=(const Device& other) const { return !(*this == other); }

 private:
  DeviceType type_;
  DeviceIndex index_;
};
inline std::ostream& operator<<(std::ostream& out, DeviceType type) { return out << (type == kCUDA ? "cuda" : "cpu"); }
inline std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }

template <class T>
class ArrayRef {
 public:
  using value_type = T;
  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T& one) : data_(&one), size_(1) {}
  ArrayRef(const std::vector<T>& values) : data_(values.data()), size_(values.size()) {}
  template <size_t N>
  constexpr ArrayRef(const std::array<T, N>& values) : data_(values.data()), size_(N) {}
  template <size_t N>
  constexpr ArrayRef(const T (&values)[N]) : data_(values), size_(N) {}
  // As in torch: the values live to the end of the call they are passed to, which is as long as they are needed.
  constexpr ArrayRef(const std::initializer_list<T>& values) : ArrayRef(std::data(values), values.size()) {}

  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + size_; }
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](size_t i) const { return data_[i]; }
  const T& at(size_t i) const {
    if (i >= size_) throw Error(str("ArrayRef: invalid index Index = ", i, "; Length = ", size_));
    return data_[i];
  }
  const T& front() const { return at(0); }
  const T& back() const { return at(size_ - 1); }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  ArrayRef slice(size_t from, size_t count) const { return ArrayRef(data_ + from, count); }
  ArrayRef slice(size_t from) const { return slice(from, size_ - from); }
  bool equals(ArrayRef other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};
using IntArrayRef = ArrayRef<int64_t>;
inline bool operator==(IntArrayRef a, IntArrayRef b) { return a.equals(b); }
inline bool operator!=(IntArrayRef a, IntArrayRef b) { return !a.equals(b); }
inline std::ostream& operator<<(std::ostream& out, IntArrayRef values) {
  out << '[';
  for (size_t i = 0; i < values.size(); ++i) out << (i ? ", " : "") << values[i];
  return out << ']';
}

enum class Layout : int8_t { Strided };
constexpr Layout kStrided = Layout::Strided;

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(Device device) : device_(device) {}
  TensorOptions(DeviceType type) : device_(Device(type)) {}
  TensorOptions dtype(ScalarType type) const { auto o = *this; o.dtype_ = type; return o; }
  template <class T>
  TensorOptions dtype() const { return dtype(CppTypeToScalarType<T>::value); }
  TensorOptions device(Device device) const { auto o = *this; o.device_ = device; return o; }
  TensorOptions device(DeviceType type, int index = -1) const { return device(Device(type, index)); }
  TensorOptions requires_grad(bool wanted) const { auto o = *this; o.requires_grad_ = wanted; return o; }
  TensorOptions layout(Layout) const { return *this; }
  bool has_dtype() const { return dtype_.has_value(); }
  bool has_device() const { return device_.has_value(); }
  ScalarType dtype() const { return dtype_.value_or(kFloat); }
  Device device() const { return device_.value_or(Device(kCPU)); }
  bool requires_grad() const { return requires_grad_; }

 private:
  std::optional<ScalarType> dtype_;
  std::optional<Device> device_;
  bool requires_grad_ = false;
};
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(Device where) { return TensorOptions(where); }

}  // namespace stark_light

namespace c10 { using namespace stark_light; }
namespace at { using namespace c10; }
namespace torch { using namespace at; }

#define TORCH_CHECK(condition, ...)                                        \
  do {                                                                     \
    if (!(condition)) ::stark_light::check_fail(#condition, ##__VA_ARGS__); \
  } while (false)
#define TORCH_INTERNAL_ASSERT(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_ASSERTM(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_ERROR(...) ::stark_light::check_fail("", ##__VA_ARGS__)
#ifndef C10_RESTRICT
#define C10_RESTRICT __restrict
#endif
