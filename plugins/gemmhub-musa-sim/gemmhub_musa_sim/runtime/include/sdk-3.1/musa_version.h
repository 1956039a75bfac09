#ifndef MUSA_VERSION
#define MUSA_VERSION 3010
#endif
