"""The rooms of a plugin: a job has the same name in every plugin, and the jobs have one order of imports."""

from __future__ import annotations

import pytest
from import_graph import IMPORTS, PACKAGES, ROOT, package_of

JOBS = (
    ("variants", "sources"),  # what can be compiled, of what, and what is compiled
    ("lowering", "lower"),  # from a problem to the call of a library or kernel
    ("library",),  # loads a library of compiled code
    ("workspace",),  # scratch memory
    ("probe",),  # looks at the machine
    ("candidates", "candidate", "choose"),  # what can run a lowered problem
    ("cost", "model", "corrections"),  # estimates, learned corrections, ranking
    ("launches", "launch", "packed"),  # runs a kernel; the packed form of b
    ("proof",),  # tries a vendor's library out
    ("backend",),  # offer, prepare, pack
    ("plugin", "build"),  # entry points: describes the plugin, imports nothing heavy; compiles beforehand
)
"""The names of each job, the lowest job first: that of its folder, and those of its files. A plugin without the job has
none of them; what else a plugin has are the parts of its own library or kernels.
"""
INDEX = {name: index for index, names in enumerate(JOBS) for name in names}
PLUGINS = sorted(PACKAGES.keys() - {"gemmhub"})
BACKENDS = [
    plugin
    for plugin in PLUGINS
    if "[project.entry-points.gemmhub]" in (PACKAGES[plugin].parent / "pyproject.toml").read_text(encoding="utf-8")
]
"""The packages with backends; the others have what several of them share, or stand in for an SDK."""


def job(module: str) -> int | None:
    """Return the index of a module's job, which the first known part of its name decides; None for other modules."""
    return next((INDEX[part] for part in module.split(".")[1:] if part in INDEX), None)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_room_imports_from_those_below(plugin):
    against = []
    for module, others in IMPORTS.items():
        if package_of(module) == plugin and (own := job(module)) is not None:
            jobs = {other: job(other) for other in others if package_of(other) == plugin}
            against += [(module, other) for other, index in jobs.items() if index is not None and index > own]
    assert against == []


def test_the_job_of_a_module():
    assert job("gemmhub_x.lowering.operands") < job("gemmhub_x.cost.model") < job("gemmhub_x.backend")
    assert job("gemmhub_x.lt.lower") == job("gemmhub_x.lower") < job("gemmhub_x.lt.backend")
    assert job("gemmhub_x.descriptors") is None


@pytest.mark.parametrize("plugin", BACKENDS)
def test_a_plugin_describes_probes_and_offers(plugin):
    assert {"plugin", "probe", "backend"} <= {path.stem for path in PACKAGES[plugin].glob("*.py")}


@pytest.mark.parametrize("plugin", BACKENDS)
def test_a_job_has_a_folder_or_files(plugin):
    """A folder where it has several files of its own."""
    files = {path.stem for path in PACKAGES[plugin].glob("*.py")}
    for room in [path.parent for path in PACKAGES[plugin].glob("*/__init__.py") if path.parent.name in INDEX]:
        names = JOBS[INDEX[room.name]]
        assert room.name == names[0]
        assert not files & {*names}
        assert len(list(room.glob("*.py"))) > 2, "a job of one file is a file"


def test_no_plugin_hides_a_shared_header():
    """The kernels of a plugin and the headers of gemmhub-nvidia are compiled as the files of one folder."""
    kernels = (ROOT / "plugins").glob("*/gemmhub_*/kernels")
    folders = {path.parents[1].name: {x.name for x in path.iterdir()} for path in kernels}
    shared = folders.pop("gemmhub-nvidia")
    assert shared
    assert {plugin: names & shared for plugin, names in folders.items() if names & shared} == {}
