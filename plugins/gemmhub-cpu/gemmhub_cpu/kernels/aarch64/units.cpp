// The units of aarch64.
#include "../unit.h"

const gemmhub::Unit* const gemmhub::kUnits[] = {&kInt8Dot, &kInt8Mmla, &kBfloat16Mmla, &kFloatNeon, &kFloat64Neon};
