"""The way of one call: options, description of the operands, binding to a kernel, plans, packing."""
