"""Whose arrays they are: the operands of each array library, its clock and its allocation."""
