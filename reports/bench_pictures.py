"""Pictures of timed kernels: the roofline, and each case's share of the roof that it is under.

Williams, Waterman, Patterson, Roofline (CACM 52, 2009): of work with I flops a byte, a machine does
min(peak, I x bandwidth). Intensity counts the least bytes, so a point's distance from the slope is
also what a kernel reads twice.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from reports.bench_figures import roof_of, time_us
from reports.page import Figure
from reports.vector import COLOURS, INK, MARKS, drawn, label, legend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from reports.bench_figures import CaseRows, Timed
    from reports.record import Record
    from reports.schema import Roof

MOST_POINTS = 1500  # a picture of more is slow to show, and no clearer
MOST_CASES = 40
_MOST_NAMES = 16

Point = tuple[float, float]  # flops a byte, TFLOP/s


def roofline(record: Record) -> Figure | None:
    """The roofline's figure; None where no row has what it needs."""
    points = _points(record)
    number = sum(map(len, points.values()))
    if not number:
        return None
    every = -(-number // MOST_POINTS)
    note = "Lines: the datasheet's roofs; dashes: the roofs measured in the run. "
    note += "Intensity counts inputs read once and outputs written once."
    if every > 1:
        note += f" Of {number:,} points one in {every} is drawn."
    return Figure("Roofline", partial(draw_roofline, record), note)


def draw_roofline(record: Record, prefix: str) -> str:
    """The roofline as SVG."""
    points = _points(record)
    every = -(-sum(map(len, points.values())) // MOST_POINTS)
    about = f"Roofline of {len(points)} kernels: TFLOP/s over flops a byte, under the GPU's roofs"

    def draw(figure: Drawing) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        inside = [point for group in points.values() for point in group]
        left = min(min(x for x, _ in inside) / 2, 1.0)
        right = max(max(x for x, _ in inside) * 3, 1000.0)
        _draw_roofs(axes, record.header.roofs, left, right)
        for number, ((_, kernel), group) in enumerate(points.items()):
            axes.plot(
                *zip(*group[::every], strict=True),
                linestyle="none",
                marker=MARKS[number % len(MARKS)],
                markersize=5.5,
                alpha=0.85,
                color=COLOURS[number % len(COLOURS)],
                label=label(kernel, 32) if number < _MOST_NAMES else None,
            )
        axes.set_xlim(left, right)
        axes.set_xlabel("flops a byte of least traffic")
        axes.set_ylabel("TFLOP/s")
        axes.grid(visible=True, which="major")
        legend(axes)

    return drawn(draw, prefix, about, inches=(9.6, 5.0))


def _points(record: Record) -> dict[tuple[str, str], list[Point]]:
    points: dict[tuple[str, str], list[Point]] = {}
    for row in record.benches:
        us, flops, least = time_us(row), row.flops or 0, row.bytes or 0
        if us is not None and flops > 0 and least > 0:
            tflops = row.tflops if row.tflops is not None else flops / us / 1e6
            point = (flops / least, tflops)
            if all(0 < each < math.inf for each in point):
                points.setdefault((row.op, row.kernel), []).append(point)
    return points


def _draw_roofs(axes: Axes, roofs: Sequence[Roof], left: float, right: float) -> None:
    """Slopes of memory up to the highest peak, and level peaks from where their slope meets them.

    Of each kind, datasheet and measured, the widest memory is the slope.
    """
    for measured, dashes, alpha in ((False, "-", 0.9), (True, (0, (5, 3)), 0.6)):
        kind = [roof for roof in roofs if roof.measured is measured and 0 < roof.value < math.inf]
        slopes = [roof for roof in kind if roof.unit == "GB/s"]
        peaks = [roof for roof in kind if roof.unit == "TFLOP/s"]
        slope = max(slopes, key=lambda roof: roof.value, default=None)
        highest = max((roof.value for roof in peaks), default=math.inf)
        style: dict[str, Any] = {
            "color": INK,
            "linestyle": dashes,
            "alpha": alpha,
            "linewidth": 1.2,
        }
        if slope is not None:
            rate = slope.value / 1e3  # TFLOP/s at one flop a byte
            end = min(right, highest / rate)
            axes.plot((left, end), (left * rate, end * rate), **style)
            text = f"{label(slope.name, 20)} {slope.value:,.0f} GB/s"
            axes.annotate(
                text, (left, left * rate), xytext=(4, -2 if measured else 16),
                textcoords="offset points", fontsize=8, alpha=alpha, rotation=0,
                va="top" if measured else "bottom",
            )  # fmt: skip
        for roof in peaks:
            start = left if slope is None else min(right, roof.value / (slope.value / 1e3))
            axes.plot((start, right), (roof.value, roof.value), **style)
            axes.annotate(
                f"{label(roof.name, 20)} {roof.value:,.0f}", (right, roof.value), xytext=(-2, 2),
                textcoords="offset points", fontsize=8, alpha=alpha, ha="right", va="bottom",
            )  # fmt: skip


def shares(cases: Sequence[CaseRows]) -> tuple[Figure, ...]:
    """For each op a figure of how near its kernels come to the roof, case by case."""
    roof = roof_of(cases)
    found = []
    for op, group in groupby(cases, key=lambda each: each.op):
        of_op = [case for case in group if any(_share(each, roof) for each in case.rows)]
        if not of_op:
            continue
        note = "Of the datasheet's roof." if roof == "peak" else "Of the ceiling measured here."
        if len(of_op) > MOST_CASES:
            note += f" The first {MOST_CASES} of {len(of_op):,} cases."
        draw = partial(draw_shares, of_op[:MOST_CASES], roof)
        found.append(Figure(f"{op}: share of the roof", draw, note))
    return tuple(found)


def _share(each: Timed, roof: str) -> float:
    """The share of a row, for a picture: 0 where there is none that can be drawn."""
    value = each.row.share_of_peak if roof == "peak" else each.row.share_of_ceiling
    return value if value is not None and 0 < value < math.inf else 0.0


def draw_shares(cases: Sequence[CaseRows], roof: str, prefix: str) -> str:
    """Shares of the roof as SVG: cases down, a mark for each kernel."""
    kernels = list(dict.fromkeys(each.row.kernel for case in cases for each in case.rows))

    def draw(figure: Drawing) -> None:
        axes = figure.subplots()
        for number, kernel in enumerate(kernels):
            places = [
                (100 * _share(each, roof), place)
                for place, case in enumerate(cases)
                for each in case.rows
                if each.row.kernel == kernel and _share(each, roof)
            ]
            if places:
                axes.plot(
                    *zip(*places, strict=True),
                    linestyle="none",
                    marker=MARKS[number % len(MARKS)],
                    markersize=6,
                    color=COLOURS[number % len(COLOURS)],
                    label=label(kernel, 32) if number < _MOST_NAMES else None,
                )
        axes.set_yticks(range(len(cases)), [label(case.title, 44) for case in cases], fontsize=8)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.set_xlim(0, max(100.0, axes.get_xlim()[1]))
        axes.axvline(100, color=INK, linewidth=1.2)
        axes.set_xlabel(f"% of {roof}")
        axes.grid(visible=True)
        legend(axes)

    about = f"Share of the roof of {len(kernels)} kernels on {len(cases)} cases"
    return drawn(draw, prefix, about, inches=(9.6, 1.3 + 0.24 * len(cases)))
