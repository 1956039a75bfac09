"""The steps of one call: options, description of the operands, cached kinds, binding to a kernel, plans, packing."""
