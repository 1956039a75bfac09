"""Specs: operands without data."""
