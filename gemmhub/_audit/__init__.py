"""Audits of matrix libraries: the kit's cases against any implementation, by what it claims."""
