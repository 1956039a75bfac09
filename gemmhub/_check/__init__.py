"""Checks of results: spot checks, comparison of backends."""
