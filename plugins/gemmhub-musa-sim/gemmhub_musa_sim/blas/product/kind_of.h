// What the vendor's data types are here. Needs a profile's headers; only muBLAS and muBLASLt include it.
#pragma once

#include <library_types.h>

#include <optional>

#include "kinds.h"

namespace musa_double {

inline std::optional<Kind> kind_of(musaDataType_t type) {
  switch (type) {
    case MUSA_R_16F:
      return Kind::f16;
    case MUSA_R_16BF:
      return Kind::bf16;
    case MUSA_R_32F:
      return Kind::f32;
    case MUSA_R_64F:
      return Kind::f64;
    case MUSA_C_32F:
      return Kind::c32;
    case MUSA_C_64F:
      return Kind::c64;
    case MUSA_R_8I:
      return Kind::i8;
    case MUSA_R_32I:
      return Kind::i32;
#ifdef MUSA_SIM_FP8
    case MUSA_R_8F_E4M3:
      return Kind::e4m3;
    case MUSA_R_8F_E5M2:
      return Kind::e5m2;
#endif
    default:
      return std::nullopt;
  }
}

}  // namespace musa_double
