"""Native code that is compiled at first use into a per-user cache, and loaded.

It serves plugins whose kernels or glue depend on the installation (a vendor's headers, a card's architecture). Failures
on the user's machine are never raised: they are returned as a :class:`~gemmhub.capability.Refusal`. What a machine has
not run before runs in a child process first (:func:`first_run`).

::

    built = build(Recipe(("/usr/bin/g++",), ("-O2", "-fPIC", "-shared"), (source,), name="glue"))
    library = built if isinstance(built, Refusal) else load(built)
"""

from gemmhub.kit.native.build import Recipe, build, forget
from gemmhub.kit.native.cache import Folder, find, folder, read, shipped, store
from gemmhub.kit.native.first_run import FirstRun, first_run
from gemmhub.kit.native.library import load
from gemmhub.kit.native.process import Outcome, run

__all__ = [
    "FirstRun", "Folder", "Outcome", "Recipe", "build", "find", "first_run", "folder", "forget", "load", "read", "run",
    "shipped", "store",
]  # fmt: skip
