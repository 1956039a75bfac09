"""Settings: their sources, their precedence, and an error for every mistake."""

from __future__ import annotations

import asyncio
import contextvars
import math
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import ConfigError, Kernel, NoBackendError, config, registration
from gemmhub._choice import registry, suggestions
from gemmhub.dtypes import PRECISIONS
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.testing.problems import problem
from plugins import add

ONE = np.ones((2, 2), np.float32)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A separate machine: a user folder, a project with a deep working directory, no environment."""
    for name in (config.CONFIG_VARIABLE, *(key.variable for key in config.KEYS.values())):
        monkeypatch.delenv(name, raising=False)
    user = tmp_path / "user"
    deep = tmp_path / "project" / "src" / "deep"
    user.mkdir()
    deep.mkdir(parents=True)
    monkeypatch.setattr("platformdirs.user_config_dir", lambda *given, **named: str(user))
    monkeypatch.setattr("platformdirs.user_data_dir", lambda *given, **named: str(tmp_path / "data"))
    monkeypatch.chdir(deep)
    return tmp_path


def put(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def settings():
    gemmhub.reload()
    return config.root()


# ---------------------------------------------------------------- sources and precedence


def test_defaults(home):
    found = settings()
    assert (found.backend, found.forced, found.precision, found.reproducible) == ((), False, "ieee", None)
    assert (found.allow, found.deny, found.records, found.workspace_limit) == (None, (), "default", None)
    assert found.origin == {}
    assert gemmhub.explain(ONE, ONE).settings == {}


PROJECT_FILES = {
    "gemmhub.toml": "{}",
    "pyproject.toml": "[project]\nname = 'x'\n[tool.gemmhub]\n{}",
}


@pytest.mark.parametrize("name", PROJECT_FILES)
def test_each_source_beats_the_next(home, monkeypatch, name):
    """Call, context, environment, project, user: the highest precedence is removed, one after the other."""
    names = ["by-call", "by-context", "by-environment", "by-project", "by-user"]
    backends = {name: Scripted(name, seconds=1.0) for name in names}
    backends["fastest"] = Scripted("fastest", seconds=1e-12)
    user = put(home / "user" / "gemmhub.toml", "backend = 'by-user'\nworkspace_mib = 5")
    project = put(home / "project" / name, PROJECT_FILES[name].format("backend = ['by-project']"))
    monkeypatch.setenv("GEMMHUB_BACKEND", "by-environment")

    def decision(**options):
        gemmhub.reload()
        for backend in backends.values():
            backend.calls.clear()
            add(backend)
        gemmhub.matmul(ONE, ONE, **options)
        found = gemmhub.explain(ONE, ONE, **options)
        assert [name for name, backend in backends.items() if backend.calls["run"]] == [found.chosen]
        assert found.settings.get("workspace_mib", user) == user
        return found.chosen, found.settings.get("backend"), found.why

    gemmhub.reload()
    for backend in backends.values():
        add(backend)  # a block is entered for backends that are known
    with gemmhub.use(backend="by-context"):
        assert decision(backend="by-call") == ("by-call", "the call", "asked for by the call")
        assert decision() == ("by-context", "use()", "asked for by use()")
    assert decision() == ("by-environment", "GEMMHUB_BACKEND", "preferred by GEMMHUB_BACKEND")
    monkeypatch.delenv("GEMMHUB_BACKEND")
    assert decision() == ("by-project", project, f"preferred by {project}")
    os.unlink(project)
    assert decision() == ("by-user", user, f"preferred by {user}")
    os.unlink(user)
    assert decision() == ("fastest", None, "smallest estimate")


def limits():
    """The limits of two backends, one with its own default; their sources in decisions; one decision as text."""
    seen = {}

    def preparing(name):
        def prepare(problem, candidate, limit):
            seen[name] = limit
            return Kernel(lambda *given: None, "does nothing")

        return prepare

    gemmhub.reload()
    add(Scripted("roomy", workspace=lambda problem: 400 * 2**20, prepare=preparing("roomy")))
    add(Scripted("plain", prepare=preparing("plain")))
    found = {name: gemmhub.plan(ONE, ONE, backend=name).decision for name in ("roomy", "plain")}
    origins = {name: decision.settings.get("workspace_mib") for name, decision in found.items()}
    return seen, origins, str(found["roomy"])


def test_workspace_is_the_backends_default_unless_the_user_sets_a_limit(home, monkeypatch):
    seen, origins, text = limits()
    assert seen == {"roomy": 400 * 2**20, "plain": 64 * 2**20}
    assert origins == {"roomy": "roomy's own default, 400 MiB", "plain": None}
    assert "setting  workspace_mib from roomy's own default, 400 MiB" in text
    user = put(home / "user" / "gemmhub.toml", "workspace_mib = 64")  # the same as the default, but the user's word
    seen, origins, _ = limits()
    assert seen == {"roomy": 64 * 2**20, "plain": 64 * 2**20}
    assert origins == {"roomy": user, "plain": user}
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", "1000")
    seen, origins, text = limits()
    assert seen == {"roomy": 1000 * 2**20, "plain": 1000 * 2**20}
    assert origins == {"roomy": "GEMMHUB_WORKSPACE_MIB", "plain": "GEMMHUB_WORKSPACE_MIB"}
    assert "default" not in text


def test_the_cpu_backend_has_64_mib():
    assert NumpyBackend().offer(problem(2, 3, 4)).workspace == 64 * 2**20


def test_sources_are_merged_key_by_key(home, monkeypatch):
    user = put(home / "user" / "gemmhub.toml", "precision = 'tf32'\nreproducible = 'run'\nworkspace_mib = 2")
    project = put(home / "project" / "gemmhub.toml", "precision = 'bf16'\ndeny = ['x', 'y']")
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", "1.5")
    found = settings()
    assert (found.precision, found.reproducible, found.deny, found.workspace_mib) == ("bf16", "run", ("x", "y"), 1.5)
    assert found.origin == {
        "precision": project,
        "reproducible": user,
        "workspace_mib": "GEMMHUB_WORKSPACE_MIB",
        "deny": project,
    }
    with gemmhub.use(precision="ieee"):
        decision = gemmhub.explain(ONE, ONE)
    unknown = f"{project}; no plugin is called 'x', 'y'"
    assert decision.settings == {**found.origin, "precision": "use()", "deny": unknown}
    assert f"reproducible from {user}" in str(decision)
    assert decision.problem.reproducible == "run"
    assert decision.problem.precision == "ieee"
    assert gemmhub.explain(ONE, ONE).problem.precision == "bf16"


def test_the_nearest_project_file_is_the_only_one(home):
    put(home / "project" / "gemmhub.toml", "precision = 'tf32'\nreproducible = 'run'")
    put(home / "project" / "src" / "pyproject.toml", "[tool.gemmhub]\nprecision = 'bf16'")
    put(home / "project" / "src" / "deep" / "pyproject.toml", "[tool.other]\nprecision = 1")
    found = settings()
    assert (found.precision, found.reproducible) == ("bf16", None)
    put(home / "project" / "src" / "gemmhub.toml", "precision = 'ieee'")
    assert settings().precision == "ieee"


@pytest.mark.parametrize("text", ["", "tool = 5", "[tool]\nx = 1", "[tool.other]", "x = 1"])
def test_a_pyproject_without_our_table_is_passed_over(home, text):
    put(home / "project" / "gemmhub.toml", "precision = 'tf32'")
    put(home / "project" / "src" / "pyproject.toml", text)
    assert settings().precision == "tf32"


@pytest.mark.parametrize("content", [b"[tool.gemmhub", b"name = '\xff'", b"x = " + b"[" * 100_000], ids=len)
def test_a_pyproject_that_is_no_toml_is_passed_over_with_a_warning(home, caplog, monkeypatch, content):
    """It may be another project's: no product must fail for it. A file that is named must be valid."""
    put(home / "project" / "gemmhub.toml", "precision = 'tf32'")
    path = home / "project" / "src" / "pyproject.toml"
    path.write_bytes(content)
    assert settings().precision == "tf32"
    assert f"{path}: cannot be read as TOML" in caplog.text
    assert np.array_equal(gemmhub.matmul(ONE, ONE), ONE @ ONE)
    assert caplog.text.count("passed over") == 1
    monkeypatch.setenv("GEMMHUB_CONFIG", str(path))
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        settings()


def test_folders_named_like_files_are_passed_over(home):
    (home / "project" / "src" / "gemmhub.toml").mkdir()
    put(home / "project" / "gemmhub.toml", "precision = 'tf32'")
    assert settings().precision == "tf32"


def test_a_named_file_replaces_project_and_user_files(home, monkeypatch):
    put(home / "project" / "gemmhub.toml", "reproducible = 'run'")
    put(home / "user" / "gemmhub.toml", "deny = ['x']")
    monkeypatch.setenv("GEMMHUB_CONFIG", put(home / "other.toml", "precision = 'tf32'"))
    found = settings()
    assert (found.precision, found.reproducible, found.deny) == ("tf32", None, ())
    (home / "elsewhere").mkdir()
    monkeypatch.setenv("GEMMHUB_CONFIG", put(home / "elsewhere" / "pyproject.toml", "[tool.gemmhub]\ndeny = 'a, b'"))
    assert settings().deny == ("a", "b")
    monkeypatch.setenv("GEMMHUB_CONFIG", "")
    assert settings().reproducible == "run"


def test_relative_record_files_start_from_the_configuration_file(home, monkeypatch):
    put(home / "project" / "gemmhub.toml", "records = 'tuning/records.jsonl'")
    assert settings().records == str(home / "project" / "tuning" / "records.jsonl")
    put(home / "project" / "gemmhub.toml", f"records = '{home.as_posix()}/project/absolute'")
    assert settings().records == str(home / "project" / "absolute")
    for word in ("off", "default"):
        put(home / "project" / "gemmhub.toml", f"records = '{word}'")
        assert settings().records == word
    monkeypatch.setenv("GEMMHUB_RECORDS", "here.jsonl")
    assert settings().records == "here.jsonl"


@pytest.mark.parametrize("name", ["gemmhub.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    "value",
    ["../notes.txt", "{home}/notes.txt", "~/notes.txt", "src/../../notes.txt", "..", "link/notes.txt", "../project2/x"],
)
def test_a_projects_records_stay_in_the_project(home, monkeypatch, name, value):
    """The user of a folder may not be the author of its files."""
    monkeypatch.setenv("HOME", str(home / "user"))
    (home / "project" / "link").symlink_to(home / "user")
    value = value.format(home=home.as_posix())
    section = "[tool.gemmhub]\n" if name == "pyproject.toml" else ""
    path = put(home / "project" / name, f"{section}records = '{value}'")
    with pytest.raises(ConfigError) as caught:
        settings()
    assert f"{path}: records = {value!r} is outside of the project; allowed: a file below" in str(caught.value)
    assert "GEMMHUB_RECORDS" in str(caught.value)
    os.rename(path, home / "user" / "gemmhub.toml")  # the user's own file may name any
    if not section:
        assert settings().records.endswith(os.path.basename(value))


def test_a_pipe_as_configuration_is_not_waited_for(home, monkeypatch):
    os.mkfifo(home / "pipe.toml")
    monkeypatch.setenv("GEMMHUB_CONFIG", str(home / "pipe.toml"))
    with pytest.raises(ConfigError, match=r"pipe\.toml: cannot be read as TOML: it is not a regular file"):
        settings()
    monkeypatch.setenv("GEMMHUB_CONFIG", os.devnull)
    assert settings().origin == {}
    monkeypatch.delenv("GEMMHUB_CONFIG")
    os.mkfifo(home / "project" / "gemmhub.toml")
    os.mkfifo(home / "user" / "gemmhub.toml")
    assert settings().origin == {}


def test_the_home_folder_may_be_a_tilde(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home / "user"))
    expected = str(home / "user" / "records.jsonl")
    path = put(home / "user" / "gemmhub.toml", "records = '~/records.jsonl'")
    assert settings().records == expected
    monkeypatch.setenv("GEMMHUB_RECORDS", "~/records.jsonl")
    assert settings().records == expected
    os.rename(path, home / "user" / "other.toml")
    monkeypatch.delenv("GEMMHUB_RECORDS")
    monkeypatch.setenv("GEMMHUB_CONFIG", "~/other.toml")
    assert settings().records == expected


def test_settings_are_read_once(home, monkeypatch):
    path = home / "project" / "gemmhub.toml"
    put(path, "precision = 'tf32'")
    first = settings()
    put(path, "precision = 'bf16'")
    monkeypatch.setenv("GEMMHUB_REPRODUCIBLE", "run")
    assert gemmhub.explain(ONE, ONE).problem.precision == "tf32"
    assert config.root() is first
    gemmhub.reload()
    problem = gemmhub.explain(ONE, ONE).problem
    assert (problem.precision, problem.reproducible) == ("bf16", "run")


def test_a_working_directory_that_was_removed(home, monkeypatch):
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    put(home / "user" / "gemmhub.toml", "precision = 'tf32'")
    assert settings().precision == "tf32"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_is_closed_to_us(home):
    (home / "user").chmod(0)
    try:
        assert settings().origin == {}
    finally:
        (home / "user").chmod(0o700)


@pytest.mark.parametrize("text", ["1", "true", "YES", "on", "0", "False", "no", "Off", ""])
def test_flags_of_the_environment(home, monkeypatch, text):
    monkeypatch.setenv("GEMMHUB_PROFILE", text)
    assert settings().profile is (text in ("1", "true", "YES", "on"))


# ---------------------------------------------------------------- mistakes

WRONG_VALUES = {
    "backend": ["5", "true", "[1]", "{x = 1}", "1979-05-27", "nan"],
    "precision": ["'fp32'", "''", "['ieee']", "1", "nan", "{}"],
    "reproducible": ["'maybe'", "2", "[]", "nan", "inf", "true"],
    "allow": ["true", "0", "[['a']]", "nan"],
    "deny": ["{a = 'b'}", "-1", "['a', 1]"],
    "records": ["''", "0", "['x']", "false", "nan", '"a\\u0000b"'],
    "workspace_mib": [
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "0.5",
        "1e30",
        "'many'",
        "true",
        "[64]",
        "'nan'",
        "'1_0'",
        "'٣'",
        "'²'",
        "9" * 400,
    ],
}
NAMES_WHAT_IS_ALLOWED = {
    "backend": "a backend's name",
    "precision": "one of ieee, bf16x3, tf32, bf16",
    "reproducible": "'run', 'batch'",
    "allow": "a list of plugin names",
    "deny": "a list of plugin names",
    "records": "a file path",
    "workspace_mib": "a number of MiB from 1 to 1048576",
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values])
@pytest.mark.parametrize("place", ["project", "pyproject", "user", "named"])
def test_a_wrong_value_in_a_file(home, monkeypatch, key, value, place):
    path, text = {
        "project": (home / "project" / "gemmhub.toml", "{}"),
        "pyproject": (home / "project" / "pyproject.toml", "[tool.gemmhub]\n{}"),
        "user": (home / "user" / "gemmhub.toml", "{}"),
        "named": (home / "other.toml", "{}"),
    }[place]
    put(path, text.format(f"{key} = {value}"))
    if place == "named":
        monkeypatch.setenv("GEMMHUB_CONFIG", str(path))
    gemmhub.reload()
    with pytest.raises(ConfigError) as caught:
        gemmhub.matmul(ONE, ONE)
    message = str(caught.value)
    assert message.startswith(f"{path}: {key} = ")
    assert NAMES_WHAT_IS_ALLOWED[key] in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("precision", "fp32"),
        ("precision", ""),
        ("reproducible", "maybe"),
        ("reproducible", "nan"),
        ("records", ""),
        *(("workspace_mib", value) for value in ("nan", "inf", "-inf", "-1", "0", "", "64MB", "1e30", "1e999")),
    ],
)
def test_a_wrong_value_in_the_environment(monkeypatch, key, value):
    variable = config.KEYS[key].variable
    monkeypatch.setenv(variable, value)
    gemmhub.reload()
    with pytest.raises(ConfigError) as caught:
        gemmhub.explain(ONE, ONE)
    assert str(caught.value).startswith(f"environment variable {variable}: {key} = {value!r} is not valid; allowed: ")
    assert NAMES_WHAT_IS_ALLOWED[key] in str(caught.value)


BROKEN_FILES = {
    "unknown key": (b"precsion = 'ieee'", "unknown key 'precsion'; allowed: backend, precision, reproducible"),
    "unknown table": (b"[gemmhub]\nprecision = 'ieee'", "unknown key 'gemmhub'"),
    "forced": (b"forced = true", "unknown key 'forced'"),
    "origin": (b"origin = {}", "unknown key 'origin'"),
    "syntax": (b"precision = ", "cannot be read as TOML"),
    "key twice": (b"deny = []\ndeny = []", "cannot be read as TOML"),
    "not UTF-8": (b"precision = '\xff'", "cannot be read as TOML: 'utf-8' codec"),
    "an endless number": (b"x = 1" + b"0" * 5000, "cannot be read as TOML"),
    "nested too deep": (b"x = " + b"[" * 100_000, "cannot be read as TOML"),
}


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_a_broken_file(home, kind):
    content, message = BROKEN_FILES[kind]
    path = home / "project" / "gemmhub.toml"
    path.write_bytes(content)
    gemmhub.reload()
    with pytest.raises(ConfigError) as caught:
        gemmhub.matmul(ONE, ONE)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_our_table_must_be_a_table(home):
    path = put(home / "project" / "pyproject.toml", "[tool]\ngemmhub = 3")
    gemmhub.reload()
    with pytest.raises(ConfigError, match="gemmhub must be a table; allowed keys: backend") as caught:
        gemmhub.matmul(ONE, ONE)
    assert str(caught.value).startswith(path)


def test_a_named_file_must_exist(home, monkeypatch):
    monkeypatch.setenv("GEMMHUB_CONFIG", str(home / "none.toml"))
    gemmhub.reload()
    with pytest.raises(ConfigError, match=r"environment variable GEMMHUB_CONFIG: no file .*none\.toml"):
        gemmhub.matmul(ONE, ONE)
    monkeypatch.setenv("GEMMHUB_CONFIG", str(home))
    gemmhub.reload()
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        gemmhub.matmul(ONE, ONE)


def test_a_mistake_is_an_error_until_it_is_corrected(home, monkeypatch):
    monkeypatch.setenv("GEMMHUB_PRECISION", "half")
    for _ in range(2):
        with pytest.raises(ConfigError, match="GEMMHUB_PRECISION"):
            gemmhub.matmul(ONE, ONE)
    monkeypatch.setenv("GEMMHUB_PRECISION", "tf32")
    assert np.array_equal(gemmhub.matmul(ONE, ONE), ONE @ ONE)


def test_config_errors_are_value_errors():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, gemmhub.GemmhubError)


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates())
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
toml_like = st.text(alphabet="tol.gemhub[]='\"\n precisonity3", max_size=60).map(str.encode)


def found_or_message(call):
    """What ``call`` returns, and the message of its ConfigError; no other exception is let through."""
    try:
        return call(), ""
    except ConfigError as error:
        return None, str(error)


@given(key=st.sampled_from(list(config.KEYS)), value=values)
def test_parse_gives_a_value_or_a_config_error(key, value):
    found, message = found_or_message(lambda: config.parse(key, value, "a test"))
    if message:
        assert message.startswith(f"a test: {key} = ")
        return
    assert config.parse(key, list(found) if isinstance(found, tuple) else found, "a test") == found
    assert key != "workspace_mib" or math.isfinite(found)


@given(content=st.binary(max_size=60) | toml_like)
def test_reading_a_file_raises_nothing_else(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMHUB_CONFIG", str(path))
        found, message = found_or_message(config.read)
    assert isinstance(found, config.Settings) or message.startswith(str(path))


# ---------------------------------------------------------------- use()


def test_use_nests_and_restores():
    plain = config.current()
    with gemmhub.use(precision="tf32") as outer:
        assert config.current() is outer
        with gemmhub.use(reproducible="run") as inner:
            assert (inner.precision, inner.reproducible) == ("tf32", "run")
            with gemmhub.use(precision="ieee", reproducible="off") as innermost:
                assert (innermost.precision, innermost.reproducible) == ("ieee", None)
            assert config.current() is inner
        assert config.current() is outer
    assert config.current() is plain


def test_use_restores_after_an_exception():
    plain = config.current()
    with pytest.raises(KeyError), gemmhub.use(precision="tf32"), gemmhub.use(precision="bf16"):
        raise KeyError
    assert config.current() is plain


def test_use_may_be_entered_again_and_within_itself():
    context = gemmhub.use(precision="tf32")
    for _ in range(3):
        with context, gemmhub.use(precision="bf16"), context:
            assert config.current().precision == "tf32"
        assert config.current().precision == "ieee"


def test_equal_settings_are_one_object():
    with gemmhub.use(precision="tf32") as first:
        pass
    with gemmhub.use(precision="tf32") as second:
        pass
    assert first is second
    base = config.root()
    assert config.override(base, "the call", backend="numpy") is config.override(base, "the call", backend="numpy")
    assert config.override(base, "the call") is base
    assert config.override(base, "the call", backend="numpy") is not config.override(base, "use()", backend="numpy")


def test_settings_of_contexts_are_bounded(monkeypatch):
    monkeypatch.setattr(config, "backend_names", None)  # these names are of no backend
    for number in range(2 * config._MAX_ENTRIES):
        with gemmhub.use(backend=f"backend{number}") as outer, gemmhub.use(precision="tf32") as inner:
            assert (inner.backend, inner.precision) == (outer.backend, "tf32") == ((f"backend{number}",), "tf32")
        assert len(config._interned) <= config._MAX_ENTRIES


def test_a_warm_call_respects_the_context(rng):
    """The cache of decided calls may not carry a choice from one context into another."""
    a = rng.standard_normal((4, 4), np.float32)
    left, right = Scripted("left", seconds=1.0), Scripted("right", seconds=1.0)
    add(left)
    add(right)
    for _ in range(3):
        for backend in (left, right):
            with gemmhub.use(backend=backend.name):
                gemmhub.matmul(a, a)
        gemmhub.matmul(a, a)
    assert (left.calls["run"], right.calls["run"]) == (3, 3)


def test_one_use_object_in_many_threads():
    """Each thread has a separate context, also where all share one object and leave in any order."""
    shared = gemmhub.use(precision="tf32")
    gate = threading.Barrier(6)
    wrong = []

    def work(index):
        for turn in range(50):
            own = ("bf16", "ieee")[(index + turn) % 2]
            with gemmhub.use(precision=own):
                if turn == 0:
                    gate.wait()
                with shared:
                    if config.current().precision != "tf32":
                        wrong.append((index, turn, "inside"))
                if config.current().precision != own:
                    wrong.append((index, turn, "outside"))
        if config.context.get() is not None:
            wrong.append((index, "end"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert not wrong


def test_a_thread_does_not_inherit_and_a_copied_context_does():
    with gemmhub.use(precision="tf32"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: config.current().precision).result() == "ieee"
        assert pool.submit(contextvars.copy_context().run, lambda: config.current().precision).result() == "tf32"


def test_tasks_keep_their_own_settings():
    shared = gemmhub.use(reproducible="run")

    async def task(precision):
        seen = []
        for _ in range(4):
            with gemmhub.use(precision=precision), shared:
                await asyncio.sleep(0)
                now = gemmhub.explain(ONE, ONE).problem
                seen.append((now.precision, now.reproducible))
            await asyncio.sleep(0)
            seen.append(config.context.get())
        return seen

    async def main():
        return await asyncio.gather(*(task(p) for p in PRECISIONS))

    for precision, seen in zip(PRECISIONS, asyncio.run(main())):
        assert seen == [(precision, "run"), None] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "fp32"},
        {"precision": 32},
        {"reproducible": "maybe"},
        {"reproducible": math.nan},
        {"backend": 5},
        {"backend": b"numpy"},
    ],
)
def test_use_checks_its_values_at_once(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(ConfigError) as caught:
        gemmhub.use(**wrong)
    assert str(caught.value).startswith(f"use(): {key} = {value!r} is not valid; allowed: ")


@pytest.mark.parametrize("backend", ["", "numpy, example", ",", ["numpy", "example"]])
def test_use_takes_one_backend(backend):
    with pytest.raises(ConfigError, match="allowed: one backend's name"), gemmhub.use(backend=backend):
        pass
    assert config.context.get() is None


def test_use_of_an_unknown_backend_is_an_error_of_the_block():
    """Which is not entered: a block without a product would otherwise pass over the misspelling."""
    with pytest.raises(ConfigError, match=r"use\(\): backend = 'nunpy' is not valid; allowed: cpu, .*numpy"):
        gemmhub.use(backend="nunpy").__enter__()
    assert config.context.get() is None


def test_use_of_a_backend_that_is_not_installed_is_an_error_of_the_call(monkeypatch):
    """What could be installed, or is switched off, is no misspelling."""
    monkeypatch.setattr(suggestions, "known", lambda: (suggestions.Suggestion("gemmhub-absent", "cuda", "kernels"),))
    with gemmhub.use(backend="absent"), pytest.raises(NoBackendError, match=r"absent .*not installed"):
        gemmhub.matmul(ONE, ONE)


def test_use_of_a_backend_while_plugins_have_not_answered(monkeypatch):
    """A plugin that lacked memory may have a backend of any name: the call, which asks it again, finds out."""
    monkeypatch.setattr(registry.registry(), "complete", False)
    monkeypatch.setattr(registry.Registry, "_discover", lambda self: None)
    assert registration.backend_names() is None
    with gemmhub.use(backend="nunpy"):
        pass


def test_use_is_a_decorator():
    """For each call, nested and async ones too; the settings outside are untouched."""
    import asyncio

    @gemmhub.use(precision="tf32")
    def inner(x, *, y=1):
        """Its own words."""
        return x, y, config.current().precision

    @gemmhub.use(precision="bf16")
    async def later():
        await asyncio.sleep(0)
        return inner(2), config.current().precision

    for _ in range(2):
        assert inner(1, y=3) == (1, 3, "tf32")
        assert asyncio.run(later()) == ((2, 1, "tf32"), "bf16")
        assert config.current().precision == "ieee"
    assert (inner.__name__, inner.__doc__) == ("inner", "Its own words.")

    @gemmhub.use(precision="tf32")
    def fails():
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert config.current().precision == "ieee"
    with pytest.raises(ConfigError, match="generator"):
        gemmhub.use(precision="tf32")(_numbers)


def _numbers():
    yield 1


def test_the_table_of_a_pyproject_in_a_file_of_its_own(home):
    (home / "gemmhub.toml").write_text('[tool.gemmhub]\nprecision = "tf32"\n')
    gemmhub.reload()
    with pytest.raises(ConfigError, match=r"\[tool\.gemmhub\] is for pyproject\.toml; allowed: keys at the top of "):
        gemmhub.matmul(ONE, ONE)


# ---------------------------------------------------------------- unknown variables


MISSPELT = {
    "GEMMHUB_PRECISON": "did you mean GEMMHUB_PRECISION?", "GEMMHUB_DISABEL": "did you mean GEMMHUB_DISABLE?",
    "GEMMHUB_WORKSPACE_MB": "did you mean GEMMHUB_WORKSPACE_MIB?", "GEMMHUB_RECORD": "did you mean GEMMHUB_RECORDS?",
    "GEMMHUB_CACHEDIR": "did you mean GEMMHUB_CACHE_DIR?", "GEMMHUB_PLUGIN": "did you mean GEMMHUB_PLUGINS?",
    "GEMMHUB_DENY": "did you mean GEMMHUB_DISABLE?", "GEMMHUB_ALLOW": "did you mean GEMMHUB_PLUGINS?",
    "GEMMHUB_\x1b[2JX": "known: GEMMHUB_BACKEND, ", "GEMMHUB_": "known: ", "GEMMHUB_SOMETHING": "known: ",
}  # fmt: skip


@pytest.mark.parametrize("name", MISSPELT)
def test_a_variable_that_nothing_reads_is_warned_of_once(home, monkeypatch, caplog, name):
    monkeypatch.setenv(name, "tf32")
    gemmhub.reload()
    for _ in range(3):
        gemmhub.matmul(ONE, ONE)
        gemmhub.explain(ONE, ONE)
        gemmhub.backends()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    told = record.getMessage()
    assert told.startswith(f"environment variable {name}: neither gemmhub nor".replace("\x1b", "\\x1b"))
    assert MISSPELT[name] in told
    assert "GEMMHUB_TESTING" not in told
    gemmhub.reload()
    gemmhub.matmul(ONE, ONE)
    assert len(caplog.records) == 2


def test_known_variables_are_not_warned_of(home, monkeypatch, caplog):
    values = {
        "GEMMHUB_PRECISION": "tf32",
        "GEMMHUB_REPRODUCIBLE": "run",
        "GEMMHUB_RECORDS": "off",
        "GEMMHUB_TUNE": "off",
        "GEMMHUB_PROFILE": "1",
    }
    for name in config.VARIABLES - {"GEMMHUB_CONFIG", "GEMMHUB_PLUGINS", "GEMMHUB_BACKEND"}:
        monkeypatch.setenv(name, values.get(name, "7"))
    monkeypatch.setenv("GEMMHUB_TEST_ANYTHING", "1")
    monkeypatch.setenv("GEMM_HUB", "1")
    gemmhub.reload()
    gemmhub.matmul(ONE, ONE)
    assert caplog.records == []


def test_every_variable_that_is_read_is_known():
    """Those of the core in one table, those of a plugin in its own description."""
    root = Path(gemmhub.__file__).parent
    read = re.compile(r"(?:environ(?:\.get\(|\[)|getenv\(|VARIABLE = )\"(GEMMHUB_[A-Z_]+)\"")
    found = {x for path in root.rglob("*.py") for x in read.findall(path.read_text(encoding="utf-8"))}
    assert found >= {"GEMMHUB_CONFIG", "GEMMHUB_CACHE_DIR", "GEMMHUB_TESTING_SEED"}
    assert found <= config.VARIABLES
    plugins = {}
    for path in root.parent.glob("plugins/*/gemmhub_*/**/*.py"):
        for name in read.findall(path.read_text(encoding="utf-8")):
            plugins.setdefault(name, set()).add(path.parts[len(root.parent.parts) + 1])
    assert plugins.keys() - config.VARIABLES == {"GEMMHUB_HOPPER_PDL", "GEMMHUB_MCC", "GEMMHUB_CUBINS"}
    assert plugins["GEMMHUB_HOPPER_PDL"] == {"gemmhub-hopper"}
    assert plugins["GEMMHUB_CUBINS"] == {"gemmhub-nvidia"}  # read while wheels are built, by two plugins
    assert plugins["GEMMHUB_MCC"] == {"gemmhub-musa"}  # which every MUSA plugin compiles with
    for plugin in root.parent.glob("plugins/*/gemmhub_*/plugin.py"):
        text = plugin.read_text(encoding="utf-8")
        assert ("GEMMHUB_HOPPER_PDL" in text) == ("gemmhub_hopper" in str(plugin))
        assert ('variables=("GEMMHUB_MCC",)' in text or 'variables = ("GEMMHUB_MCC",)' in text) == ('("musa",)' in text)
