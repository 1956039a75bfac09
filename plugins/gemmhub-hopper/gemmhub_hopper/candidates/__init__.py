"""The kernels, with their launch parameters, that can run a lowered problem."""
