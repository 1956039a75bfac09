"""Fitting of cost models and their corrections to measured times."""
