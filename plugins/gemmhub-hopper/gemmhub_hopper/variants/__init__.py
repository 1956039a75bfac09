"""The kernels that can be compiled: constants, tile shapes, sources, and what is compiled."""
