"""The parts that gemmhub's MUSA backends share: the installation, the runtime, arrays, compilers, proofs, a base."""

from gemmhub_musa.array import Array, MusaArrays, empty, from_numpy
from gemmhub_musa.runtime import MusaError, Runtime
from gemmhub_musa.sdk import Sdk, find

__all__ = ["Array", "MusaError", "MusaArrays", "Runtime", "Sdk", "empty", "find", "from_numpy"]
