"""Imports a missing library."""

import gemmhub_example_missing_library  # noqa: F401
