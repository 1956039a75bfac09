"""The deferring array libraries, which take whole calls: gradients, traced functions, lazy and distributed arrays."""
