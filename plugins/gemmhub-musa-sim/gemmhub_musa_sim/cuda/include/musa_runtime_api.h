#include "musa_runtime.h"
