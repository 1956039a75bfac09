"""The kernels that can be compiled: tile shapes, macros, sources."""
