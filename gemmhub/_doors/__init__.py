"""Deferring array libraries: whole calls with arrays that mean more than memory, one folder a library."""
