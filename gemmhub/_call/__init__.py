"""The steps of one call: options, description of the operands, call cache, binding to a kernel, plans, packing."""
