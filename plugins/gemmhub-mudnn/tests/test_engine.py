"""The workspace of products: on the caller's stream, and each product's own."""

from __future__ import annotations

import pytest
from gemmhub_mudnn.engine import Engine, Plan
from gemmhub_musa import runtime

PLACES = (0, 0, None, 0, None)


class Asking:
    """A library whose products ask for 512 bytes more; ``before`` is called in the first of them."""

    def __init__(self):
        self.before, self.given = None, []

    def create(self, index, grow):
        self._grow = grow
        return 1

    def workspace(self, pointer):
        return 256

    def forget(self, pointer):
        pass

    def run(self, pointer, *call):
        nested, self.before = self.before, None
        if nested is not None:
            nested()
        self.given.append(self.engine._more(512))


@pytest.fixture
def engine(home):
    library = Asking()
    library.engine = Engine(library, runtime.load(), 0)
    return library.engine


def run(engine, limit, stream=0):
    with engine.turn():
        engine.run(Plan(engine.library, 1), [PLACES], 1.0, 0.0, stream, limit)


def test_leases_are_on_the_callers_stream(engine, monkeypatch):
    stream, leased = engine.runtime.stream_create(), []
    lease = engine.workspace.lease
    monkeypatch.setattr(
        engine.workspace, "lease", lambda stream, nbytes: leased.append((stream, nbytes)) or lease(stream, nbytes)
    )
    run(engine, 1000, stream)
    assert leased == [(stream, 256), (stream, 512)]
    engine.runtime.stream_destroy(stream)


def test_a_nested_product_has_a_limit_of_its_own(engine):
    engine.library.before = lambda: run(engine, 500)
    run(engine, 1000)
    nested, outer = engine.library.given
    assert nested is None
    assert outer is not None
