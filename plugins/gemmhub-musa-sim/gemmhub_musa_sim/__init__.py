"""A simulated MUSA installation, for tests and for trying things without a Moore Threads card."""

from gemmhub_musa_sim.home import make_home

__all__ = ["make_home"]
