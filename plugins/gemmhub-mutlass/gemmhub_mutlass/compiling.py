"""Compiling configurations with mcc against the user's MUTLASS: once for a user, and one at a time in a process, as
each takes half a minute and 1 to 2 GB.
"""

from __future__ import annotations

from pathlib import Path

from gemmhub_musa import compile as compilers
from gemmhub_musa.sdk import Sdk

from gemmhub.capability import Refusal
from gemmhub.kit import locks, native
from gemmhub_mutlass import source_text
from gemmhub_mutlass.configuration import Configuration
from gemmhub_mutlass.installation import Mutlass
from gemmhub_mutlass.library import Library
from gemmhub_mutlass.source_text import LONG, SHORT

PATIENCE = 600.0
"""Seconds for one compilation; half a minute is usual."""


class Kernels:
    """What has been compiled and loaded in this process. Safe in any number of threads."""

    def __init__(self, sdk: Sdk, mutlass: Mutlass) -> None:
        self._sdk, self._mutlass = sdk, mutlass
        self._lock = locks.lock()
        self._found: dict[Configuration, Library | Refusal] = {}
        self._arguments: int | Refusal | None = None

    def known(self, configuration: Configuration) -> Library | Refusal | None:
        """None where nobody has asked for it yet."""
        return self._found.get(configuration)

    def get(self, configuration: Configuration) -> Library | Refusal:
        """From this process, from the cache, or compiled now."""
        with self._lock:
            if configuration not in self._found:
                self._found[configuration] = self._load(configuration)
            return self._found[configuration]

    def arguments(self, arch: str) -> int | Refusal:
        """How many arguments the mainloop's builder takes: by the version, or where there is none, by trial."""
        version = self._mutlass.version
        if version is not None:
            return LONG if version < (0, 2) else SHORT
        with self._lock:
            if self._arguments is None:
                self._arguments = self._tried(arch)
            return self._arguments

    def _tried(self, arch: str) -> int | Refusal:
        answers: dict[int, Path | Refusal] = {}
        for arguments in (SHORT, LONG):
            text = source_text.trial(arguments)
            answers[arguments] = self._compile(text, arch, f"mutlass_builder_{arguments}")
            if not isinstance(answers[arguments], Refusal):
                return arguments
        last = answers[LONG]
        assert isinstance(last, Refusal)
        return Refusal(
            f"{self._mutlass.name} at {self._mutlass.home} has a CollectiveBuilder that takes neither {SHORT} nor "
            f"{LONG} arguments, or does not compile: {last.reason}",
            "use a release of MUTLASS, 0.1.1 or later, with its version.h",
            last.traceback,
        )

    def _load(self, configuration: Configuration) -> Library | Refusal:
        arguments = self.arguments(configuration.arch)
        if isinstance(arguments, Refusal):
            return arguments
        text = source_text.text(configuration, arguments)
        built = self._compile(text, configuration.arch, f"mutlass_{configuration.name}")
        if isinstance(built, Refusal):
            return Refusal(
                f"{self._mutlass.name} gives no kernel for {configuration}: {built.reason}", built.remedy,
                built.traceback,
            )  # fmt: skip
        loaded = native.load(built)
        if isinstance(loaded, Refusal):
            return loaded
        try:
            return Library(loaded)
        except AttributeError as error:
            return Refusal(f"{built.name} is no kernel: {error}", f"delete {built}")

    def _compile(self, text: str, arch: str, name: str) -> Path | Refusal:
        return compilers.compile_mu(
            text, self._sdk, arch, name=name, include=(source_text.FOLDER, self._mutlass.include),
            depends=(source_text.TEMPLATE, *self._mutlass.headers()), timeout=PATIENCE,
        )  # fmt: skip
