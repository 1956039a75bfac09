// The host's headers, in a file of their own: it is compiled once for all variants.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
