"""What gemmhub's MUSA backends share: the installation, the runtime, device arrays, compilers, the first self-test."""

from gemmhub_musa.array import Array, MusaArrays, empty, from_numpy
from gemmhub_musa.runtime import MusaError, Runtime
from gemmhub_musa.sdk import Sdk, find

__all__ = ["Array", "MusaError", "MusaArrays", "Runtime", "Sdk", "empty", "find", "from_numpy"]
