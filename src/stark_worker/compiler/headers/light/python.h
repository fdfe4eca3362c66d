// A Python module of plain functions: arguments and results are converted here, tensors by torch's own converters.
#pragma once

#include <Python.h>

#include "tensor.h"

namespace stark_light {

class PythonError {};  // Python already knows what went wrong

struct Bridge {
  PyObject *tensor_type = nullptr, *out_of_python = nullptr, *into_python = nullptr, *out_of_memory = nullptr;

  static Bridge& instance() {
    static Bridge bridge;
    return bridge;
  }
  static PyObject* attribute(const char* module, const char* name) {
    PyObject* owner = PyImport_ImportModule(module);
    PyObject* found = owner ? PyObject_GetAttrString(owner, name) : nullptr;
    Py_XDECREF(owner);
    if (!found) throw PythonError();
    return found;
  }
  Bridge()
      : tensor_type(attribute("torch", "Tensor")),
        out_of_python(attribute("torch._C._aoti", "unsafe_alloc_void_ptr_from_tensor")),
        into_python(attribute("torch._C._aoti", "alloc_tensors_by_stealing_from_void_ptrs")),
        out_of_memory(attribute("torch", "OutOfMemoryError")) {}
};

[[noreturn]] inline void wrong_type(const char* wanted, PyObject* got) {
  PyErr_Format(PyExc_TypeError, "incompatible function arguments: %s is expected, not %s", wanted, Py_TYPE(got)->tp_name);
  throw PythonError();
}

template <class T, class Enable = void>
struct Cast;

template <>
struct Cast<Tensor> {
  static Tensor from(PyObject* object) {
    Bridge& bridge = Bridge::instance();
    if (PyObject_IsInstance(object, bridge.tensor_type) != 1) wrong_type("a Tensor", object);
    PyObject* capsule = PyObject_CallFunctionObjArgs(bridge.out_of_python, object, nullptr);
    if (!capsule) throw PythonError();
    auto* owned = static_cast<AtenTensorHandle>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
    Py_DECREF(capsule);
    if (!owned) throw PythonError();
    return Tensor(owned);
  }
  static PyObject* to(const Tensor& tensor) {
    if (!tensor.defined()) Py_RETURN_NONE;
    // The converter of lists is the one that frees what it is given; its namesake for one tensor does not.
    PyObject* handles = PyList_New(1);
    PyList_SET_ITEM(handles, 0, PyCapsule_New(reinterpret_cast<void*>(argument(tensor)), nullptr, nullptr));
    PyObject* objects = PyObject_CallFunctionObjArgs(Bridge::instance().into_python, handles, nullptr);
    PyObject* object = objects ? PySequence_GetItem(objects, 0) : nullptr;
    Py_DECREF(handles);
    Py_XDECREF(objects);
    return object;
  }
};

template <>
struct Cast<bool> {
  static bool from(PyObject* object) {
    const int truth = PyFloat_Check(object) || PyUnicode_Check(object) ? -1 : PyObject_IsTrue(object);
    if (truth < 0) wrong_type("a bool", object);
    return truth == 1;
  }
  static PyObject* to(bool value) { return PyBool_FromLong(value); }
};

template <class T>
struct Cast<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, char>>> {
  static T from(PyObject* object) {
    PyObject* index = PyFloat_Check(object) ? nullptr : PyNumber_Index(object);
    if (!index) wrong_type("an int", object);
    const long long value = PyLong_AsLongLong(index);
    Py_DECREF(index);
    const bool lost = static_cast<long long>(static_cast<T>(value)) != value || (std::is_unsigned_v<T> && value < 0);
    if (PyErr_Occurred() || lost) wrong_type("an int in range", object);
    return static_cast<T>(value);
  }
  static PyObject* to(T value) { return PyLong_FromLongLong(static_cast<long long>(value)); }
};

template <class T>
struct Cast<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static T from(PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) wrong_type("a float", object);
    return static_cast<T>(value);
  }
  static PyObject* to(T value) { return PyFloat_FromDouble(static_cast<double>(value)); }
};

template <>
struct Cast<std::string> {
  static std::string from(PyObject* object) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
    if (!text) wrong_type("a str", object);
    return std::string(text, static_cast<size_t>(size));
  }
  static PyObject* to(const std::string& text) {
    return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  }
};

template <class T>
struct Cast<std::optional<T>> {
  static std::optional<T> from(PyObject* object) {
    return object == Py_None ? std::nullopt : std::optional<T>(Cast<T>::from(object));
  }
  static PyObject* to(const std::optional<T>& value) {
    if (!value) Py_RETURN_NONE;
    return Cast<T>::to(*value);
  }
};

template <class T>
struct Cast<std::vector<T>> {
  static std::vector<T> from(PyObject* object) {
    PyObject* items = PyUnicode_Check(object) || !PySequence_Check(object) ? nullptr : PySequence_Tuple(object);
    if (!items) wrong_type("a list", object);
    std::unique_ptr<PyObject, void (*)(PyObject*)> kept(items, [](PyObject* o) { Py_DECREF(o); });
    std::vector<T> values;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i) values.push_back(Cast<T>::from(PyTuple_GET_ITEM(items, i)));
    return values;
  }
  static PyObject* to(const std::vector<T>& values) {
    PyObject* list = PyList_New(0);
    for (const T& value : values) {
      PyObject* item = Cast<T>::to(value);
      const bool failed = !item || PyList_Append(list, item) != 0;
      Py_XDECREF(item);
      if (failed) throw PythonError();
    }
    return list;
  }
};

template <>
struct Cast<IntArrayRef> {  // as an argument only: what it refers to has to live as long as the call
  static std::vector<int64_t> from(PyObject* object) { return Cast<std::vector<int64_t>>::from(object); }
};

template <class... T>
PyObject* tuple_of(const T&... values) {
  PyObject* tuple = PyTuple_New(sizeof...(T));
  Py_ssize_t i = 0;
  (PyTuple_SET_ITEM(tuple, i++, Cast<T>::to(values)), ...);
  if (!PyErr_Occurred()) return tuple;
  Py_DECREF(tuple);
  return nullptr;
}
template <class... T>
struct Cast<std::tuple<T...>> {
  static PyObject* to(const std::tuple<T...>& values) {
    return std::apply([](const T&... each) { return tuple_of(each...); }, values);
  }
};
template <class A, class B>
struct Cast<std::pair<A, B>> {
  static PyObject* to(const std::pair<A, B>& values) { return tuple_of(values.first, values.second); }
};

struct Function {
  virtual ~Function() = default;
  virtual PyObject* operator()(PyObject* const* arguments, Py_ssize_t count) const = 0;
};

template <class R, class... A>
struct Bound : Function {
  explicit Bound(R (*function)(A...)) : function_(function) {}
  PyObject* operator()(PyObject* const* arguments, Py_ssize_t count) const override {
    if (count != static_cast<Py_ssize_t>(sizeof...(A))) {
      PyErr_Format(PyExc_TypeError, "incompatible function arguments: %zd are expected, not %zd",
                   static_cast<Py_ssize_t>(sizeof...(A)), count);
      return nullptr;
    }
    return run(arguments, std::index_sequence_for<A...>());
  }

 private:
  template <size_t... I>
  PyObject* run([[maybe_unused]] PyObject* const* arguments, std::index_sequence<I...>) const {
    std::tuple<decltype(Cast<std::decay_t<A>>::from(nullptr))...> values{Cast<std::decay_t<A>>::from(arguments[I])...};
    if constexpr (std::is_void_v<R>) {
      function_(static_cast<A&&>(std::get<I>(values))...);
      Py_RETURN_NONE;
    } else {
      return Cast<std::decay_t<R>>::to(function_(static_cast<A&&>(std::get<I>(values))...));
    }
  }
  R (*function_)(A...);
};

// The border to Python: every exception of C++ ends here.
template <class Step>
PyObject* guarded(const Step& step) {
  try {
    return step();
  } catch (const PythonError&) {
  } catch (const NotImplementedError& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const IndexError& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::exception& error) {
    // Only the text of torch's exceptions comes through its C interface.
    const bool no_memory = std::strncmp(error.what(), "CUDA out of memory", 18) == 0;
    PyErr_SetString(no_memory ? Bridge::instance().out_of_memory : PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an exception of an unknown type");
  }
  return nullptr;
}

inline PyObject* enter(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* function = static_cast<const Function*>(PyCapsule_GetPointer(self, nullptr));
  return guarded([&] { return (*function)(arguments, count); });
}

class Module {
 public:
  explicit Module(PyObject* module) : module_(module) {}

  template <class R, class... A>
  Module& def(const char* name, R (*function)(A...), const char* doc = "") {
    if (PyObject_HasAttrString(module_, name)) throw Error(str("two functions are called ", name));
    // These live as long as the process, like the library they are in.
    auto* method = new PyMethodDef{name, nullptr, METH_FASTCALL, doc};
    method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&enter));
    PyObject* capsule = PyCapsule_New(static_cast<Function*>(new Bound<R, A...>(function)), nullptr, nullptr);
    PyObject* callable = PyCFunction_NewEx(method, capsule, nullptr);
    Py_XDECREF(capsule);
    if (!callable || PyModule_AddObject(module_, name, callable) != 0) throw PythonError();
    return *this;
  }
  template <class Lambda, class Pointer = decltype(+std::declval<Lambda>())>
  Module& def(const char* name, Lambda lambda, const char* doc = "") {
    return def(name, static_cast<Pointer>(lambda), doc);
  }

 private:
  PyObject* module_;
};

inline PyObject* make_module(PyModuleDef* definition, void (*fill)(Module&)) {
  PyObject* made = PyModule_Create(definition);
  if (!made) return nullptr;
  PyObject* filled = guarded([&] {
    Bridge::instance();
    Module module(made);
    fill(module);
    return made;
  });
  if (!filled) Py_DECREF(made);
  return filled;
}

template <class T>
T wrap_pybind_function(T function) { return function; }

}  // namespace stark_light

#define STARK_LIGHT_MODULE(name, module)                                                                        \
  static void stark_light_fill(::stark_light::Module&);                                                         \
  extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name() {                                 \
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, #name, nullptr, -1, nullptr, nullptr, nullptr, nullptr, \
                                     nullptr};                                                                  \
    return ::stark_light::make_module(&definition, &stark_light_fill);                                          \
  }                                                                                                             \
  static void stark_light_fill(::stark_light::Module& module)
#define PYBIND11_MODULE(name, module) STARK_LIGHT_MODULE(name, module)
