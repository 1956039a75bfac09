"""Grouped products: many products in one call, whose sizes follow from offsets into their operands."""
