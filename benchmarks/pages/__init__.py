"""The tables of the documentation that are made from result files."""
