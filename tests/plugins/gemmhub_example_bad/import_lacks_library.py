"""Imports a library that is not there."""

import gemmhub_example_missing_library  # noqa: F401
