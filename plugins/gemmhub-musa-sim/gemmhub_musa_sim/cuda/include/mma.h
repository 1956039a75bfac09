#pragma once
#include_next <mma.h> /* CUDA's */

#include <crt/mma.h> /* this folder's: with quotation marks it would be taken for a file of CUDA's */
