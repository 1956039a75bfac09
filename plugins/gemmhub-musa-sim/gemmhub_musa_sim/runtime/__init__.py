"""The simulated libmusart and libmusa: building them, and finding the one that this process has loaded."""

from gemmhub_musa_sim.runtime.loaded import loaded_runtime
from gemmhub_musa_sim.runtime.recipe import build_driver, build_runtime, include_files

__all__ = ["build_driver", "build_runtime", "include_files", "loaded_runtime"]
