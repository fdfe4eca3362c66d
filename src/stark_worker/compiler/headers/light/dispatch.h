// One copy of a piece of code per element type, chosen when it runs.
#pragma once

#include "types.h"

#define AT_DISPATCH_CASE(TYPE, ...) \
  case TYPE: { \
    using scalar_t [[maybe_unused]] = typename ::stark_light::ScalarTypeToCppType<TYPE>::t; \
    return __VA_ARGS__(); \
  }
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...) \
  [&] { \
    const ::stark_light::ScalarType stark_light_type = TYPE; \
    switch (stark_light_type) { \
      __VA_ARGS__ \
      default: \
        throw ::stark_light::NotImplementedError( \
            ::stark_light::str('"', NAME, "\" not implemented for '", stark_light_type, "'")); \
    } \
  }()

#define STARK_LIGHT_FLOATING(...) \
  AT_DISPATCH_CASE(::stark_light::ScalarType::Double, __VA_ARGS__) \
  AT_DISPATCH_CASE(::stark_light::ScalarType::Float, __VA_ARGS__)
#define STARK_LIGHT_INTEGRAL(...) \
  AT_DISPATCH_CASE(::stark_light::ScalarType::Byte, __VA_ARGS__) \
  AT_DISPATCH_CASE(::stark_light::ScalarType::Char, __VA_ARGS__) \
  AT_DISPATCH_CASE(::stark_light::ScalarType::Int, __VA_ARGS__) \
  AT_DISPATCH_CASE(::stark_light::ScalarType::Long, __VA_ARGS__) \
  AT_DISPATCH_CASE(::stark_light::ScalarType::Short, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, STARK_LIGHT_FLOATING(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, STARK_LIGHT_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND(::stark_light::ScalarType::Half, TYPE, NAME, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH( \
      TYPE, NAME, \
      STARK_LIGHT_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, STARK_LIGHT_INTEGRAL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, STARK_LIGHT_FLOATING(__VA_ARGS__) STARK_LIGHT_INTEGRAL(__VA_ARGS__))
