"""Tensors of torch."""
