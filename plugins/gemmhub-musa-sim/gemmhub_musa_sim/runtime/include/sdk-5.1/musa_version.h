#ifndef MUSA_VERSION
#define MUSA_VERSION 50100
#endif
