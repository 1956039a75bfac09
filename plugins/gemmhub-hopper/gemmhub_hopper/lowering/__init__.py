"""From a problem to the operands, strides and K passes of the kernels."""
