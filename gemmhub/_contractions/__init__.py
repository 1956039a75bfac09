"""Contractions: linear layers, einsum, tensordot and vecdot as products of :func:`gemmhub.matmul`."""
