"""Tensors of torch that need more than their memory: gradients, tracing, transformed functions, autocast."""

from __future__ import annotations


def register() -> None:
    """Take the calls with such tensors."""
