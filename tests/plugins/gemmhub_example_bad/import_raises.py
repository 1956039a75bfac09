"""Raises while it is imported."""

raise ValueError("the plugin's own mistake")
