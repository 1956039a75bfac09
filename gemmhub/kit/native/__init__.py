"""Native code made on first use: compile sources into a per-user cache, once, and load the result.

For plugins whose kernels or glue must be compiled against what is installed (a vendor's headers, a card's
architecture). Nothing here raises for what goes wrong on the user's machine: it is returned as a
:class:`~gemmhub.capability.Refusal`.

::

    built = build(Recipe(("/usr/bin/g++",), ("-O2", "-fPIC", "-shared"), (source,), name="glue"))
    library = built if isinstance(built, Refusal) else load(built)
"""

from gemmhub.kit.native.build import Recipe, build, forget
from gemmhub.kit.native.cache import Folder, find, folder, read, store
from gemmhub.kit.native.library import load
from gemmhub.kit.native.process import Outcome, run

__all__ = ["Folder", "Outcome", "Recipe", "build", "find", "folder", "forget", "load", "read", "run", "store"]
