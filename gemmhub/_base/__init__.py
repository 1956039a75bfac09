"""Functions that every other module may use: files, printing, errors from foreign code, inner products."""
