#ifndef MUSA_VERSION
#define MUSA_VERSION 4030
#endif
