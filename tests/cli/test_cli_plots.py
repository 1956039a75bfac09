"""The plots of gemmhub bench: every label fits, and none covers another."""

from __future__ import annotations

import random
from itertools import product

import pytest

from gemmhub.cli import figures, heatmap, plot, roofline
from gemmhub.cli.contenders import label
from gemmhub.cli.measurements import Case, Measurement

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within matplotlib, of its own dependencies

LONG = ("musa-kernels", "cublas", "cuda", "hopper", "numpy")


def case(m, n, k, dtype="float32", names=("numpy",), out=None, spread=1.0, baseline="numpy.matmul", orders="rrr"):
    """Ratios from 2**-spread to 2**spread."""
    draw = random.Random(f"{m} {n} {k} {dtype}")
    flops = 2.0 * m * n * k
    ratios = {**{name: 2 ** draw.uniform(-spread, spread) for name in names}, baseline: 1.0}
    rows = []
    for name, ratio in sorted(ratios.items(), key=lambda item: -item[1]):
        time = flops / (1e11 * ratio)
        rows.append(Measurement(name, "", "passed", time, 0.9 * time, 1.2 * time, (time,) * 7, 100.0 * ratio, ratio))
    nbytes = 4.0 * (m * k + k * n + m * n)
    return Case(
        "", m, n, k, dtype, out or dtype, flops, nbytes, "cpu", "numpy", "host", 1, baseline, tuple(rows), (), orders
    )


def grid(first, second, k, **options):
    return [case(m, n, k, **options) for m, n in product(first, second)]


SETS = {
    "one": [case(64, 64, 64)],
    "2 x 2": grid((64, 256), (64, 256), 128),
    "2 x 2 of long names": grid(
        (16, 16384), (4096, 16384), 16384, dtype="float8_e4m3fn", out="complex128", names=LONG,
        baseline="torch.matmul", orders="ccc",
    ),
    "beside numpy": grid((16, 64), (16, 64), 64, names=("cpu",), baseline="numpy"),
    "4 x 4": grid((64, 128, 256, 512), (64, 128, 256, 512), 128, names=("numpy", "cpu", "hopper"), spread=6.0)
    + grid((64, 128, 256, 512), (64, 128, 256, 512), 128, names=("numpy", "cpu"), dtype="float16", spread=0.05),
    "8 x 8": grid([2**i for i in range(5, 13)], [2**i for i in range(5, 13)], 64, names=("numpy", "cpu")),
}  # fmt: skip
MACHINE = "AMD EPYC 9654 96-Core Processor (2 sockets), 192 cores"


def drawn():
    for name, cases in SETS.items():
        yield pytest.param(lambda cases=cases: plot.figure(cases, MACHINE), id=f"plot of {name}")
        yield pytest.param(lambda cases=cases: roofline.figure(cases, 3e10, MACHINE), id=f"roofline of {name}")
        yield pytest.param(lambda cases=cases: heatmap.figure(cases, MACHINE), id=f"heat map of {name}")


def shown(figure):
    """The texts of a figure that can be seen, as (text, box, whether it is aslant)."""
    from matplotlib.text import Text

    found = [x for x in figure.findobj(Text) if x.get_visible() and x.get_text().strip()]
    ticks = {id(x) for axis in figure.axes for x in _hidden_ticks(axis)}
    return [(x.get_text(), x.get_window_extent(), x.get_rotation() % 90 != 0) for x in found if id(x) not in ticks]


def _hidden_ticks(axis):
    """Labels of ticks beyond the limits, which are not drawn; those that are have a place within."""
    for which, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        low, high = sorted(limits)
        for tick in (*which.get_major_ticks(), *which.get_minor_ticks()):
            if not low <= tick.get_loc() <= high or not (axis.axison and which.get_visible()):
                yield from (tick.label1, tick.label2)


@pytest.mark.parametrize("make", [*drawn()])
def test_labels_fit(make):
    figure = make()
    figure.draw_without_rendering()
    texts = shown(figure)
    assert len(texts) > 5
    whole = figure.bbox
    for text, box, _ in texts:
        assert whole.x0 - 0.5 <= box.x0 < box.x1 <= whole.x1 + 0.5, text
        assert whole.y0 - 0.5 <= box.y0 < box.y1 <= whole.y1 + 0.5, text
    for i, (text, box, aslant) in enumerate(texts):
        for other, there, too in texts[i + 1 :]:
            width = min(box.x1, there.x1) - max(box.x0, there.x0)
            height = min(box.y1, there.y1) - max(box.y0, there.y0)
            assert width < 1.5 or height < 1.5 or (aslant and too), (text, other)


def test_a_title_that_does_not_fit_would_be_found():
    figure = plot.figure(SETS["2 x 2"], MACHINE)
    figure.suptitle("too long " * 50)
    figure.draw_without_rendering()
    assert any(box.x0 < figure.bbox.x0 for _, box, _ in shown(figure))


def test_numpy_and_numpy_matmul_have_different_labels():
    assert [label(name) for name in ("numpy", "numpy.matmul", "torch.matmul", "cublas")] == [
        "numpy (through gemmhub)", "numpy.matmul", "torch.matmul", "cublas",
    ]  # fmt: skip
    for figure in (plot.figure(SETS["2 x 2"], "m"), roofline.figure(SETS["2 x 2"], 3e10, "m")):
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [
            "numpy (through gemmhub)", "numpy.matmul",
        ]  # fmt: skip
    panels = heatmap.figure(SETS["2 x 2"], "m").axes
    assert panels[0].get_title() == "numpy (through gemmhub), float32"
    assert panels[1].get_ylabel() == "speed relative to\nnumpy.matmul"
    assert plot.figure(SETS["beside numpy"], "m").axes[1].get_ylabel() == "speed relative to\nnumpy (through gemmhub)"


def test_bars_begin_at_1():
    cases = [case(8, 8, 8), case(8, 8, 16)]
    axis = plot.figure(cases, "m").axes[1]
    ratios = [row.ratio for each in cases for row in each.rows if row.name == "numpy"]
    ends = [bar.get_y() + bar.get_height() for bar in axis.patches]
    assert ends == pytest.approx(ratios)
    assert {bar.get_y() for bar in axis.patches} == {1.0}
    assert axis.get_yscale() == "log"
    assert [text.get_text() for text in axis.texts] == [f"{ratio:.2f}x" for ratio in sorted(ratios, key=_far)][::-1]


def _far(ratio):
    return max(ratio, 1 / ratio)


def test_labels_without_room_are_left_out():
    """The first ones have the choice; none covers another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 2), layout="constrained")
    axis = figure.subplots()
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    assert figures.place(figure, axis, [(0.5, 0.5, f"label {i}", "k") for i in range(9)], 8) == len(axis.texts)
    assert 1 <= len(axis.texts) < 9
    assert axis.texts[0].get_text() == "label 0"
    assert figures.place(figure, axis, [(0.5, 0.9, "wider than the axes " * 3, "k")], 8) == 0


def test_orders_have_separate_panels():
    """Cases of two orders are two maps, not one over the other."""
    cases = [*SETS["2 x 2"], *grid((64, 256), (64, 256), 128, orders="rcr")]
    titles = ["float32", "float32, rcr"]
    assert [axis.get_title() for axis in plot.figure(cases, "m").axes[:2]] == titles
    assert [axis.get_title() for axis in roofline.figure(cases, 3e10, "m").axes] == titles
    maps = heatmap.figure(cases, "m").axes[:2]
    assert [axis.get_title().replace("\n", " ") for axis in maps] == [
        f"numpy (through gemmhub), {title}" for title in titles
    ]
    assert all(len(axis.texts) == 4 for axis in maps)


def test_names_that_matplotlib_would_act_on():
    """A dollar sign does not begin a formula, and a control character has no glyph."""
    assert figures.named("$x$\x1b") == r"\$x\$\x1b"
    plot.figure([case(8, 8, 8, names=("$x$ \x1b[2J",))], "$5 \x1b machine").draw_without_rendering()
