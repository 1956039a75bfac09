"""The public functions, each thin: arrays -> problem -> decision -> plan -> kernel.

A repeated call costs one look-up, by the types, dtypes and shapes of its operands, its options and the settings in
force, and then runs the kernel: no hook, no environment, no dataclass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import numpy as np

from gemmhub import config
from gemmhub._base import registered
from gemmhub._base.guard import memory_errors, out_of_memory, propagates
from gemmhub._base.wording import instance
from gemmhub._call.cache import CallCache
from gemmhub._call.keys import STRIDE_DEPENDENT, call_key
from gemmhub._call.options import ARRAYS, NUMBERS, Options, positional, request, signature, unknown, with_scalars
from gemmhub.errors import AllocationError, BackendError, GemmhubError, InputError
from gemmhub.kit import locks
from gemmhub.packed import PackedB

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gemmhub._arrays.spec.operands import ArraySpec
    from gemmhub._call.bind import Execute
    from gemmhub._call.describe import Call
    from gemmhub._call.options import Request
    from gemmhub._call.plan import Plan
    from gemmhub._measure.tune import TuneResult
    from gemmhub._measure.tune_function import FunctionTuneResult
    from gemmhub.array_library import ArrayLibrary, FastPath
    from gemmhub.backend import RunGroups
    from gemmhub.capability import Copy
    from gemmhub.problem import GemmProblem
    from gemmhub.verdict import Decision

Array = Any
A = TypeVar("A")
"""The type of the first operand, which a result has."""

_cache = CallCache()
_find = _cache.find
_fast = _cache.fast
"""The parts of the cache that warm calls read: a look-up in a module costs less than one in an object."""
_imported = False
_importing = locks.Busy()
_tuning = locks.lock()
"""Lock of the tuning of a function, until its products are measured: two at a time would disturb each other."""
_tunes = locks.Busy()
"""Whether this thread tunes a function: the lock is re-entrant."""
_settings = config.context.get
locks.survive_forks()
_ndarray = np.ndarray
_replay = registered.Replay


@overload
def matmul(
    a: complex | Sequence[Any], b: Array, /, *, out: Array | None = None, **options: Unpack[Options]
) -> Array: ...
@overload
def matmul(a: A, b: Array, /, *, out: Array | None = None, **options: Unpack[Options]) -> A: ...
@signature()
def matmul(a: Array, b: Array, /, *rest: NoReturn, out: Array | None = None, **options: Unpack[Options]) -> Array:
    """Compute ``activation(alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias)`` on the best backend there is.

    Shapes are those of :func:`numpy.matmul`: (..., m, k) by (..., k, n), batch dimensions broadcast,
    vectors allowed. The result is of the operands' own array type and device.

    Parameters
    ----------
    a, b : arrays, any strides. ``b`` may be a :class:`~gemmhub.PackedB`.
    out : array of the result's shape, any strides; may overlap operands. Its dtype serves as ``out_dtype``.
    out_dtype : dtype or name of the result; the default follows the table in :mod:`gemmhub.dtypes`.
    alpha, beta : numbers. As in BLAS, ``beta`` of 0 never reads ``c``, and ``alpha`` of 0 ignores the product, even
        where it is NaN. Beyond float32's normal numbers they make the accumulator float64 on the CPU, and are refused
        on devices where it is float32.
    c : array that broadcasts to the result, of its dtype or of the accumulator's. May be ``out``.
    bias : array of shape (n,) or (1, n), added to every row, or (m, 1), added to every column.
    scale_a, scale_b : float32 arrays of factors of a and b: of one element; of one for each row of a (m,) and column of
        b (n,); or matrices whose sizes are 1, the operand's, or its number of blocks of 128 (along k, and along n for
        b). For real floating results.
    scale_out : float32 array of one element, which multiplies the result after the activation.
    pre_activation : array of the product's shape, written: what the activation is applied to. True makes it, and
        returns (result, pre-activation).
    amax : float32 array of one element, written: the largest magnitude of the result, before ``scale_out``.
    activation : None, "relu", "gelu" (erf form), "gelu_tanh", "silu", "tanh", "sigmoid", "relu_squared", "leaky_relu"
        (slope 0.01, torch's default) or "hardswish". Gated ones make one column of two: "swiglu" is silu of the first
        half of the columns times the second half, "geglu" gelu likewise, "swiglu_interleaved" takes columns 2 j and
        2 j + 1. Or a name that :func:`register_epilogue` has added.
    precision : "ieee" (default), "bf16x3", "tf32" or "bf16": what float32 operands may be rounded to.
    reproducible : "run": bitwise equal results for the same operands (strides included), with or without out. "batch":
        also, each row has the same bits whatever other rows there are, in any position or batch. The name of an order
        of sums, as :func:`explain` prints it: the same, in that order. None for no promise; "off" undoes a setting.
    symmetric : True promises that the product, and c, are symmetric: the lower triangle is computed and mirrored, so
        that the result is symmetric bit for bit. It goes with alpha, beta and c. :func:`spot_check` finds a false
        promise.
    backend : name of the one backend to use.
    stream : native handle of the device stream to work on; None for the array library's current one.

    Returns
    -------
    The product (``out`` where given), within the bound of :mod:`gemmhub.accuracy`.

    Raises
    ------
    ShapeError, DTypeError, OutputError, DeviceError, InputError : a bad argument; nothing was written.
    NoBackendError : no backend may run this; it carries the decision that :func:`explain` returns.
    KernelError, AllocationError : the chosen kernel failed, or memory for the result is missing.

    See Also
    --------
    explain : which backend runs the product, and why.
    plan : decide once, for repeated calls.
    spot_check : whether a result is right.
    numpy.matmul : the same shapes.

    Notes
    -----
    float16, bfloat16, float8 and int8 operands are accumulated in float32 or int32. Each result is within a bound that
    follows from its dtypes, whichever backend computes it; int4 operands are not supported.

    Examples
    --------
    >>> a, b = np.ones((2, 300), np.int8), np.ones((300, 2), np.int8)
    >>> gemmhub.matmul(a, b)
    array([[300, 300],
           [300, 300]], dtype=int32)
    >>> gemmhub.matmul(a, b, bias=np.array([0, -400], np.int32), activation="relu")
    array([[300,   0],
           [300,   0]], dtype=int32)
    """
    if rest:
        raise positional(rest)
    key = replay = None
    try:
        cls = a.__class__
        if cls is not _ndarray and cls in _fast:
            result = _fast[cls].call(a, b, out, options)
            if result.__class__ is _replay:
                replay = result
            elif result is not None:
                return result
        if replay is not None:
            pass
        elif options or b.__class__ is PackedB:
            key = call_key(a, b, out, options)
            run = _find(key)
            if run is not None and run is not STRIDE_DEPENDENT:
                return run(a, b, out, options)
        else:
            if out is None:
                run = _find((cls, b.__class__, a.dtype, b.dtype, a.shape, b.shape, _settings()))
            elif out.__class__ is _ndarray:
                run = _find(
                    (cls, b.__class__, a.dtype, b.dtype, a.shape, b.shape, _settings(),
                     out.__class__, out.dtype, out.strides)
                )  # fmt: skip
            else:
                run = _find(call_key(a, b, out, options))
                if run is not None:
                    return run(a, b, out, options)
            if run is not None:
                return run(a, b, out)
    except Exception:
        pass  # _call() finds the reason, and reports it
    except BaseException as error:
        if propagates(error):
            raise
    if replay is not None and registered.record is not None:
        return registered.record(a, b, options, replay)  # here, as an exception of autograd's hooks is the caller's
    return _call(a, b, out, options, key)


def _call(a: Array, b: Array, out: Array | None, options: Options, short_key: object) -> Array:
    """Look up the family of the call, then its signature, strides included; decide where it is new. ``short_key``: the
    key without strides, where it is known.
    """
    cache = _cache  # before settings are read
    families = cache.families
    if families is not None:
        try:
            run = families.find(a, b, out, options, cache.put, short_key)
            if run is not None:
                return run(a, b, out, options) if options else run(a, b, out)
        except Exception:
            pass  # the checks below find the reason
        except BaseException as error:
            if propagates(error):
                raise
    values: Mapping[str, Any] = options
    try:
        if registered.deferring or registered.doors:
            deferred = _deferred("matmul", a, b, out, options)
            if deferred is not NotImplemented:
                return deferred
            cache = _cache  # importing a deferring library forgets decisions
        if not values.keys().isdisjoint(NUMBERS):
            values = with_scalars(options)  # numbers of NumPy as Python's
        if values.get("pre_activation") is True:
            return _with_pre_activation(a, b, out, values)
        key, run = cache.look_up(a, b, out, values)
        if run is not None:
            try:
                return run(a, b, out, values)
            except (GemmhubError, MemoryError):
                raise
            except BaseException as error:
                if propagates(error):
                    raise
                # A kernel's own product raised: the checks below find the reason, or it is raised again.
        with locks.deciding:
            import_deciding()
            parsed = request(options)
            call, decision, kernel = _decided(a, b, out, parsed, cache)
            from gemmhub._call import bind

            execute = bind.bind(call, decision.chosen or "", kernel)
        result = bind.first_run(call, decision.chosen or "", kernel, execute, a, b, out, parsed)
    except AllocationError:
        raise
    except MemoryError as error:
        raise out_of_memory(error) from error
    if key is not None and decision.cacheable and cache.observer is None:
        with suppress(MemoryError):  # the result exists; a later call may fill the cache
            _learn(cache, key, call, decision, kernel, execute, a, b, out, values)
            if kernel.any_size and decision.bucketed and call.problem.device.type == "cpu":
                if cache.families is None:
                    from gemmhub._call.family import Families
                    from gemmhub._choice import records

                    cache.families = Families(records.sizes())
                cache.families.learn(call, decision, kernel, (a, b, out), options)
    return result


def _with_pre_activation(a: Array, b: Array, out: Array | None, options: Mapping[str, Any]) -> tuple[Array, Array]:
    """The result, and the argument of its activation in a new array."""
    from gemmhub._call import describe

    import_deciding()
    others: Any = {name: x for name, x in options.items() if name != "pre_activation"}
    arrays, native = describe.new_pre_activation(a, b, out, request(others))
    before = arrays.wrap(native, (a, b))
    if out is None and describe.immutable(arrays.view(before, "pre_activation")):
        # The product of views, which writes memory that the library has not got yet.
        views = {name: arrays.view(others.pop(name), name) for name in ARRAYS if others.get(name) is not None}
        right = b if isinstance(b, PackedB) else arrays.view(b, "b")
        result = matmul(arrays.view(a, "a"), right, **others, **views, pre_activation=native)
        return arrays.wrap(result, (a, b)), arrays.wrap(native, (a, b))
    return matmul(a, b, out=out, **others, pre_activation=before), before


def _deferred(call: str, a: Array, b: Array, out: Array | None, options: Options) -> Any:
    """The result of a call that a deferring array library takes; NotImplemented where none does.

    An array of a type that numpy.matmul delegates products to (a quantity with a unit, a labelled array) gets the
    result of numpy.matmul.
    """
    arrays = (a, b, out, *map(options.get, ARRAYS))
    result = registered.deferred(call, (a, b), {**options} if out is None else {"out": out, **options}, arrays)
    if result is NotImplemented and call == "matmul" and not (type(a) is type(b) is _ndarray):
        from gemmhub._arrays import array_types

        if array_types.multiplies(a) or array_types.multiplies(b):
            return array_types.as_numpy(a, b, out, options)
    return result


def import_deciding() -> None:
    """Import the modules that every first call needs; BackendError where this call interrupts that import."""
    global _imported
    if _imported:
        return
    if _importing.now:
        raise BackendError(
            "gemmhub was called from a signal handler or a profiler while its own first call imports modules; let one "
            "call return first"
        )
    with _importing:
        getattr(np, "random")  # noqa: B009  (NumPy imports it when it is first named)
        import platformdirs  # noqa: F401  (settings and records look for folders)

        from gemmhub._call import family  # noqa: F401  (here, as forks wait for what is imported while deciding)
        from gemmhub._choice import decide, registry  # noqa: F401
        from gemmhub.numpy_backend import backend  # noqa: F401

        _imported = True


def _learn(
    cache: CallCache, key: tuple[Any, ...], call: Call, decision: Decision, kernel: Any, execute: Execute,
    a: Array, b: Array, out: Array | None, options: Mapping[str, Any],
) -> None:  # fmt: skip
    """Record how a call was run: for all calls of its signature and, where its library has one, in the fast path."""
    from gemmhub._call import bind

    problem = call.problem
    fast = cache.fast.get(type(a)) or call.arrays.fast_path(_settings)
    read = [x for x in (a, b, out, *map(options.get, ARRAYS)) if not (x is None or isinstance(x, PackedB))]
    first = registered.looked_up(read)
    if fast is None and first:
        from gemmhub._call import library_paths

        fast = library_paths.path(type(a), call.arrays, cache, matmul)
    if fast is not None and not call.packed:
        kernel_run = bind.on_views(kernel, problem) if problem.device.type == "cpu" else kernel.run
        fast.learn(call.arrays, problem, call.out_shape, kernel_run, a, b, out, options)
        if kernel.with_rows is not None and decision.bucketed and out is None and fast.learn_rows is not None:
            from gemmhub._choice import records

            fast.learn_rows(call.arrays, problem, kernel.with_rows, records.sizes(), a, b, options)
        cache.fast[type(a)] = fast
    if problem.device.type != "cpu":
        repeated = bind.by_options(None, False, execute, options)
        cache.put(key, repeated)
        if first:
            cache.put_keyed(type(a), key, repeated)
        return
    direct = bind.shortcut(call, kernel)
    execute = bind.warm(call, execute, (a, b, *map(options.get, ARRAYS)))
    if not decision.layout_free:
        cache.put(call_key(a, b, out, options), STRIDE_DEPENDENT)
        key = call_key(a, b, out, options, with_strides=True) or key
    repeated = bind.by_options(direct, problem.plain, execute, options)
    cache.put(key, repeated)
    if first:
        cache.put_keyed(type(a), key, repeated)
    if options or fast is not None:
        return  # a fast path looks up calls without options itself
    if not all(isinstance(x, _ndarray) for x in (a, b, *(() if out is None else (out,)))):
        return  # an array of another library, without a dtype of NumPy or strides in bytes
    if decision.layout_free and not call.packed:
        run = direct or execute
        plain_key: tuple[Any, ...] = (type(a), type(b), a.dtype, b.dtype, a.shape, b.shape, _settings())
        if out is not None:
            # Strides reveal an out whose elements share memory; a wrong shape is refused by the matmul of two matrices.
            plain_key = (*plain_key, type(out), out.dtype, out.strides)
            run = bind.same_out(run, out.shape) if problem.batch else run
        cache.put(plain_key, run)


def _decided(
    a: Array, b: Array, out: Array | None, request: Request, cache: CallCache, planned: bool = False
) -> tuple[Call, Decision, Any]:
    """Describe a call, decide it by its bucket, and prepare it. A ``planned`` call is decided by its own sizes, unless
    its bits must be those of :func:`matmul`.
    """
    from gemmhub._call import bind, describe

    call = describe.describe(a, b, out, request, specs=planned)
    exact = planned and call.problem.reproducible is None

    def race() -> str:
        from gemmhub._measure import race

        return race.race(call, request, a, b)

    decision, kernel = settled(call.arrays, call.problem, request, cache, bind.overlaps(call), exact, race)
    if cache.observer is None:
        return call, decision, kernel
    if planned:
        return call, decision, cache.observer.planned(call, request, decision, kernel)
    cache.observer.matmul(call, request, decision)
    return call, decision, kernel


def settled(
    arrays: ArrayLibrary, problem: GemmProblem, request: Request, cache: CallCache, copies: tuple[Copy, ...] = (),
    exact: bool = False, race: Callable[[], str] | None = None,
) -> tuple[Decision, Any]:  # fmt: skip
    """Decide a described call and prepare it, by its bucket unless ``exact``; ``race`` measures it where the settings
    ask for that.
    """
    from gemmhub._call import profiling
    from gemmhub._choice import decide

    settings = request.settings
    key = problem, settings, copies
    decided = cache.find(key)  # looked up once: another thread may drop it at any time
    if decided is None or (exact and decided[0].ranked_at):
        ranked = None if exact else decide.ranked_at(problem, settings)
        winner = None if ranked is None else cache.winners.get((ranked, settings))
        kernel = None if winner is None else winner.prepared(problem, settings)
        if kernel is None:
            _refuse_capture(arrays, request)
        raced = race() if race is not None and settings.tune != "off" and cache.observer is None else ""
        if winner is not None and kernel is not None:
            decision = replace(winner.decision, problem=problem, copies=copies)
        else:
            winner = decide.resolve(problem, settings, copies, ranked)
            decision, kernel = winner.decision, winner.kernel
            if decision.cacheable and winner.ranked is not None:
                cache.put_winner((winner.ranked, settings), winner)
        if settings.profile:
            kernel = profiling.ranged(kernel, decision)
        decided = replace(decision, race=raced) if raced else decision, kernel
        if decision.cacheable:
            cache.put(key, decided)
    return decided


def _refuse_capture(arrays: ArrayLibrary, request: Request) -> None:
    """Raise BackendError where the stream of a call that is not decided yet is being captured into a graph."""
    with arrays.on(request.stream):
        if arrays.capturing():
            raise BackendError(
                "this call is the first of its kind, and its stream is being captured into a graph: choosing a kernel "
                "may compile it and allocate memory; make the call, or gemmhub.plan(...) of it, once before the capture"
            )


@overload
def plan(
    a: complex | Sequence[Any] | ArraySpec, b: Array, /, *, out: Array | None = None, **options: Unpack[Options]
) -> Plan[Any]: ...
@overload
def plan(a: A, b: Array, /, *, out: Array | None = None, **options: Unpack[Options]) -> Plan[A]: ...
@signature()
@memory_errors
def plan(a: Array, b: Array, /, *rest: NoReturn, out: Array | None = None, **options: Unpack[Options]) -> Plan[Any]:
    """Decide and prepare once; return a function of operands with the same shapes and dtypes.

    Parameters
    ----------
    a, b, out, c, bias : examples of the arrays of :func:`matmul`, whose data are not kept; or an
        :class:`~gemmhub.ArraySpec` for each.
    options : the other options of :func:`matmul`, fixed for all calls of the plan.

    Returns
    -------
    A :class:`Plan`, called as ``plan(a, b, out=None, ...)``, with the attributes ``decision`` and ``kernel``. It
    pickles; where it is loaded, the hardware, the backends and the settings there decide again.

    Raises
    ------
    The errors of :func:`matmul`.

    See Also
    --------
    matmul : the product, decided at each call by a look-up.
    pack : store b as a kernel reads it.

    Notes
    -----
    A plan keeps its choice: later tuning, :func:`use` blocks and :func:`reload` do not change it.

    Examples
    --------
    >>> a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    >>> multiply = gemmhub.plan(a, b)
    >>> multiply(2 * a, b)[0]
    array([6., 6., 6., 6.], dtype=float32)
    """
    if rest:
        raise positional(rest)
    if registered.deferring or registered.doors:
        deferred = _deferred("plan", a, b, out, options)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    cache = _cache  # before settings are read
    with locks.deciding:
        import_deciding()
        from gemmhub._call import describe
        from gemmhub._call.plan import make_plan
        from gemmhub._call.recipe import Recipe

        parsed = request(options)
        call, decision, kernel = _decided(a, b, out, parsed, cache, planned=True)
    return make_plan(call, decision, kernel, parsed, describe.describe, b, Recipe(a, b, out, options))


@signature()
@memory_errors
def explain(a: Array, b: Array, /, *rest: NoReturn, out: Array | None = None, **options: Unpack[Options]) -> Decision:
    """Report which backend :func:`matmul` would choose for this call, and every other backend's answer.

    Nothing is prepared or computed.

    Parameters
    ----------
    a, b, out, options : as of :func:`matmul`; each array may be an :class:`~gemmhub.ArraySpec`, which has no data.

    Returns
    -------
    A :class:`Decision`. Print it, or use it as data; ``chosen`` is None where no backend can run the call.

    Raises
    ------
    The errors of :func:`matmul` but NoBackendError.

    See Also
    --------
    backends : the state of every backend on this machine.
    tune : measure instead of estimating.

    Notes
    -----
    The logger ``gemmhub`` has the same table at the level DEBUG, for each decision of a program.

    Examples
    --------
    >>> a = np.ones((2, 2), np.float16)
    >>> decision = gemmhub.explain(a, a, backend="numpy")
    >>> decision.chosen, decision["numpy"].status
    ('numpy', 'chosen')
    """
    if rest:
        raise positional(rest)
    if registered.deferring or registered.doors:
        deferred = _deferred("explain", a, b, out, options)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    with locks.deciding:
        import_deciding()
        from gemmhub._call import bind, describe
        from gemmhub._choice import decide

        parsed = request(options)
        call = describe.describe(a, b, out, parsed, specs=True)
        decided = decide.decide(call.problem, parsed.settings, bind.overlaps(call))
        if isinstance(b, PackedB):
            from gemmhub._call.pack import cost

            decided = replace(decided, packing=cost(b, call, decided, parsed.settings))
        if parsed.settings.tune == "off":
            return decided
        from gemmhub._measure import race

        return replace(decided, race=race.preview(call, parsed))


@memory_errors
def pack(
    b: Array, /, *, a_dtype: Any = None, m: int = 1024, backend: str | None = None, reproducible: str | None = None,
    **others: NoReturn,
) -> PackedB:  # fmt: skip
    """Pack a copy of ``b``, shape (k, n), for repeated products with different ``a``.

    Parameters
    ----------
    b : array of shape (k, n). The copy is unchanged when b is rewritten.
    a_dtype : dtype of ``a`` in those products; by default that of ``b``.
    m : typical number of rows of ``a``.
    backend : name of the one backend to use. By default the one whose packed product of ``m`` rows of ``a_dtype`` is
        expected to be the fastest.
    reproducible : the promise on bits of those products, as of :func:`matmul`: with "batch" only the backend that keeps
        it for b packs it.

    Returns
    -------
    A :class:`PackedB`, to be passed as ``b`` to :func:`matmul` and :func:`plan`. Where no packed form is expected to be
    faster than b itself, it keeps a copy of b as it is. :func:`explain` of a product reports both times.

    Raises
    ------
    The errors of :func:`matmul`; NoBackendError also where no backend that can run this has a packed form.

    See Also
    --------
    plan : decide and prepare once.
    explain : the times of the packed product and of b itself, as ``packing``.

    Notes
    -----
    The packed form is a copy that the caller owns. No cache is keyed by an address, so that none becomes stale.

    Examples
    --------
    >>> b = gemmhub.pack(np.ones((64, 8), np.float16))
    >>> gemmhub.matmul(np.ones((1, 64), np.float16), b)
    array([[64., 64., 64., 64., 64., 64., 64., 64.]], dtype=float16)
    """
    for name in others:
        raise unknown(name, ("a_dtype", "m", "backend", "reproducible"))
    if registered.deferring or registered.doors:
        given = {"a_dtype": a_dtype, "m": m, "backend": backend, "reproducible": reproducible}
        deferred = registered.deferred("pack", (b,), given)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    with locks.deciding:
        import_deciding()
        from gemmhub._call.pack import pack_operand

        return pack_operand(b, a_dtype, m, backend, reproducible)


@overload
def tune(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> FunctionTuneResult: ...
@overload
def tune(a: Array, b: Array, /, *, out: Array | None = None, **options: Unpack[Options]) -> TuneResult: ...
def tune(a_or_function: Any, /, *arguments: Any, **options: Any) -> Any:
    """Time all candidates of ``tune(a, b, **options)``, or of each product of ``tune(function, *args, **kwargs)``.

    Every backend, and each of its candidates, that can run the call ``matmul(a, b, **options)`` is timed, and the times
    are recorded. Later calls alike, in this process and others, use the fastest. Candidates with a wrong result
    are reported and not recorded.

    ``tune(function, *args, **kwargs)`` calls a function or a model once, and tunes each product that it makes through
    gemmhub, on new random operands of the same layouts. Every argument is passed to the function, as
    :meth:`concurrent.futures.Executor.submit` passes them: none is tune's own. A file to ship is written by ``save`` of
    the result.

    Parameters
    ----------
    a, b, out, options : as of :func:`matmul`; nothing is written to ``out``.
    function, args, kwargs : in place of these, a function or a model, and its arguments. It is called once, as it is: a
        model in training mode counts its batches.

    Returns
    -------
    A ``TuneResult``: seconds of each candidate, fastest first, and the path of the record file. Of a function a
    ``FunctionTuneResult``: its products, with their calls, the former choice and the fastest candidate. Print it;
    ``save(path)`` writes its records to a file.

    Raises
    ------
    The errors of :func:`matmul`; RecordError where records cannot be written; InputError for a function that makes no
    product through gemmhub. What the function raises passes through, and nothing is recorded.

    See Also
    --------
    explain : the times that a choice is made by.
    use : ``use(records=path)`` decides by a file, and ``use(tune="first")`` autotunes at the first call of each call
        signature.

    Notes
    -----
    Candidates are timed in turn, in several rounds, and medians are compared. The tuning cache is the file that the
    setting ``records`` names; an entry counts only on the device and with the versions that it was measured with.

    Products of the whole process are counted while the function runs: those of gradients, of compiled programs and of
    other threads too, but not of plans that were made before it, nor of other processes.

    Examples
    --------
    >>> a = np.ones((64, 64), np.float32)
    >>> result = gemmhub.tune(a, a)
    >>> gemmhub.explain(a, a).chosen == result.best.backend
    True
    >>> result = gemmhub.tune(lambda x: gemmhub.matmul(gemmhub.matmul(x, a), a), a)
    >>> [product.calls for product in result.products]
    [2]
    """
    if callable(a_or_function):
        return _tune_function(a_or_function, arguments, options)
    if not arguments:
        raise TypeError(
            f"tune() got {instance(type(a_or_function))} alone; it takes two arrays, tune(a, b, **options), or a "
            "function, tune(function, *args, **kwargs)"
        )
    return _tune_product(a_or_function, *arguments, **options)


@signature()
@memory_errors
def _tune_product(
    a: Array, b: Array, /, *rest: NoReturn, out: Array | None = None, **options: Unpack[Options]
) -> TuneResult:
    """Tune one product."""
    if rest:
        raise positional(rest)
    if registered.deferring or registered.doors:
        deferred = _deferred("tune", a, b, out, options)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    with locks.deciding:
        import_deciding()
        from gemmhub._measure.tune import tune_call

        parsed = request(options)
    tuned = tune_call(a, b, out, parsed)
    if tuned.path is not None:
        forget_decisions()
    return tuned


def _tune_function(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Call ``function`` once, and tune the products that it makes."""
    if _tunes.now or not _tuning.acquire(blocking=False):
        raise InputError("function", "tuned while another one is", "one at a time", "tune them one after the other")
    try:
        with _tunes:
            return _tune_alone(function, arguments, keywords)
    finally:
        _tuning.release()


def _tune_alone(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Do the same, while no other function is tuned."""
    with locks.deciding:
        import_deciding()
        from gemmhub._call.observe import Observer
        from gemmhub._measure import tune_function
        from gemmhub._measure.tune import check_writable

    check_writable()
    observer = Observer()
    _replace_cache(CallCache(observer))
    try:
        result = function(*arguments, **keywords)
        tune_function.wait(result)
    finally:
        products = observer.end()
        _replace_cache(CallCache())
    if not products:
        raise tune_function.no_product(function, result)
    try:
        return tune_function.tune_products(products)
    finally:
        forget_decisions()


def fast_path(cls: type) -> FastPath | None:
    """The fast path of a type of arrays, while its decisions hold; None before its first call."""
    return _fast.get(cls)


def grouped_signatures() -> OrderedDict[Any, Any]:
    """The signatures of grouped calls, while decisions hold."""
    return _cache.grouped


def known(a: Array, b: Array, out: Array, options: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the function that runs repeated products of ndarrays of this signature into an ``out``; None where none is
    kept. It takes (a, b, out), and the options where there are some, and checks less than :func:`matmul`.
    """
    cache = _cache
    if cache.observer is not None or not (a.__class__ is b.__class__ is out.__class__ is _ndarray):
        return None
    if not options:
        plain = _ndarray, _ndarray, a.dtype, b.dtype, a.shape, b.shape, _settings(), _ndarray, out.dtype, out.strides
        run = cache.find(plain)
        if run is not None:
            return run  # type: ignore[no-any-return]
    run = cache.look_up(a, b, out, options)[1]
    if run is not None:
        return run if options else lambda a, b, out: run(a, b, out, options)
    return None if cache.families is None else cache.families.find(a, b, out, options, cache.put, None)


def known_groups(a: Array, b: Array, out: Array, options: Mapping[str, Any]) -> tuple[str, RunGroups] | None:
    """Return the name of the kernel that runs such a product, and its function for groups of any sizes; None where it
    has none. Kernels of one name run each other's products, of operands that differ in sizes alone.
    """
    parsed = request({**options})  # type: ignore[typeddict-item]
    _, decision, kernel = _decided(a, b, out, parsed, _cache)
    if kernel.groups is None or not (kernel.any_size and decision.cacheable) or parsed.settings.profile:
        return None
    return f"{decision.chosen}: {kernel.description}", kernel.groups


def forget_decisions() -> None:
    """Begin a new cache of decided calls (new records, new settings).

    The old cache is replaced, not emptied: a call that is being decided in another thread stores its decision, taken by
    the old records and settings, in the old cache.
    """
    observer = _cache.observer
    _replace_cache(CallCache(observer))
    if observer is not None and observer.ended:  # meanwhile, in another thread
        _replace_cache(CallCache())


def _replace_cache(cache: CallCache) -> None:
    global _cache, _find, _fast
    _cache, _find, _fast = cache, cache.find, cache.fast


registered.forget = forget_decisions

__all__: Sequence[str] = ["explain", "matmul", "pack", "plan", "tune"]
