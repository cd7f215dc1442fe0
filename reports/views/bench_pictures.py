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

from kernel_workbench.reports.document.model import Figure
from kernel_workbench.reports.document.svg import (
    COLOURS,
    INK,
    MARKS,
    drawable,
    drawn,
    label,
    legend,
    placed,
)
from kernel_workbench.reports.views.bench_cases import roof_of, share_of, time_us
from kernel_workbench.reports.views.run import own_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from kernel_workbench.reports.record import Record, Roof
    from kernel_workbench.reports.views.bench_cases import CaseRow, CaseRows

MOST_POINTS = 1500  # a picture of more is slow to show, and no clearer
MOST_CASES = 40
_MOST_NAMES = 16
_MOST_ROOFS = 10  # of a datasheet, and measured
_LABEL, _LETTER_INCHES = 56, 0.073  # characters of a case's name, and the room that one takes
_PEAK_WIDTHS = (2.0, 1.2, 0.7)  # of lines that share dashes and colour

Point = tuple[float, float]  # flops a byte, TFLOP/s


def roofline(record: Record) -> Figure | None:
    """Return the roofline's figure; None where no row has what it needs."""
    points = _points(record)
    number = sum(map(len, points.values()))
    if not number:
        return None
    every = -(-number // MOST_POINTS)
    note = "Lines: the datasheet's roofs; dashes: the roofs measured in the run. "
    note += "Intensity counts inputs read once and outputs written once."
    if every > 1:
        note += f" Of {number:,} points one in {every} is drawn."
    return Figure("Roofline", partial(_draw_roofline, record), note)


def _draw_roofline(record: Record, prefix: str) -> str:
    """Return the roofline as SVG."""
    points = _points(record)
    every = -(-sum(map(len, points.values())) // MOST_POINTS)
    about = f"Roofline of {len(points)} kernels: TFLOP/s over flops a byte, under the GPU's roofs"

    def draw(figure: Drawing) -> None:
        axes = placed(figure)[0]
        axes.set_xscale("log")
        axes.set_yscale("log")
        inside = [point for group in points.values() for point in group]
        left = min(min(x for x, _ in inside) / 2, 1.0)
        right = max(max(x for x, _ in inside) * 3, 1000.0)
        _draw_roofs(axes, record.header.roofs, left, right)
        looks = _looks(record)
        for place, kernel in enumerate(kernel for kernel in looks if kernel in points):
            axes.plot(
                *zip(*points[kernel][::every], strict=True),
                **looks[kernel],
                label=label(kernel, 32) if place < _MOST_NAMES else None,
            )
        axes.set_xlim(left, right)
        axes.set_xlabel("flops a byte of least traffic")
        axes.set_ylabel("TFLOP/s")
        for axis in (axes.xaxis, axes.yaxis):
            # matplotlib's own powers of ten are markup, which a name in a picture never is.
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
            axis.set_minor_formatter(lambda _value, _: "")
        axes.grid(visible=True, which="major")
        legend(axes)

    entries = min(len(points), _MOST_NAMES) + min(len(record.header.roofs), 2 * _MOST_ROOFS)
    return drawn(draw, prefix, about, inches=(10.4, max(4.8, 0.8 + 0.18 * entries)))


def _looks(record: Record) -> dict[str, dict[str, Any]]:
    """Each kernel's colour and mark, the same for all its ops and in all pictures of the record.

    Ours and a user's come first, filled and over all others, which are small and hollow.
    """
    own = {name for _, name in own_of(record.header)}
    kernels = dict.fromkeys(row.kernel for row in record.benches)
    in_order = sorted(kernels, key=lambda kernel: kernel not in own)
    return {kernel: _look(number, is_own=kernel in own) for number, kernel in enumerate(in_order)}


def _look(number: int, *, is_own: bool) -> dict[str, Any]:
    """Return the n-th of a hundred looks: each round of colours moves its marks on by three."""
    turn, colour = divmod(number, len(COLOURS))
    mark = MARKS[(colour + 3 * turn) % len(MARKS)]
    look = {"linestyle": "none", "marker": mark, "color": COLOURS[colour]}
    if is_own:
        return look | {"markersize": 7.5, "zorder": 4}
    return look | {"markersize": 5, "markerfacecolor": "none", "zorder": 3}


def _points(record: Record) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for row in record.benches:
        us, flops, least = time_us(row), row.flops or 0, row.bytes or 0
        if us is not None and flops > 0 and least > 0:
            tflops = row.tflops if row.tflops is not None else flops / us / 1e6
            point = (flops / least, tflops)
            if all(map(drawable, point)):
                points.setdefault(row.kernel, []).append(point)
    return points


def _draw_roofs(axes: Axes, roofs: Sequence[Roof], left: float, right: float) -> None:
    """Draw slopes of memory up to the highest peak, and level peaks from there on.

    The widest memory of each kind, datasheet and measured, is the slope.
    """
    for measured, dashes, alpha in ((False, "-", 0.9), (True, (0, (5, 3)), 0.6)):
        kind = [roof for roof in roofs if roof.measured is measured and drawable(roof.value)]
        kind = kind[:_MOST_ROOFS]
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
        whose = "measured" if measured else "datasheet"
        if slope is not None:
            rate = slope.value / 1e3  # TFLOP/s at one flop a byte
            end = min(right, highest / rate)
            text = f"{label(slope.name, 20)} {slope.value:,.0f} GB/s, {whose}"
            axes.plot((left, end), (left * rate, end * rate), label=text, **style)
        for roof, widths in zip(peaks, _PEAK_WIDTHS * len(peaks), strict=False):
            start = left if slope is None else min(right, roof.value / (slope.value / 1e3))
            text = f"{label(roof.name, 20)} {roof.value:,.0f} TFLOP/s, {whose}"
            level = style | {"linewidth": widths}
            axes.plot((start, right), (roof.value, roof.value), label=text, **level)


def shares(record: Record, cases: Sequence[CaseRows]) -> tuple[Figure, ...]:
    """For each op a figure of how near its kernels come to the roof, case by case."""
    roof, looks = roof_of(cases), _looks(record)
    result = []
    for op, group in groupby(cases, key=lambda item: item.op):
        of_op = [case for case in group if any(_share(row, roof) for row in case.rows)]
        if not of_op:
            continue
        kind = "the datasheet's roof" if roof == "peak" else "the ceiling measured here"
        note = f"Shares of {kind}."
        every = -(-len(of_op) // MOST_CASES)
        if every > 1:
            note += f" Of {len(of_op):,} cases one in {every} is drawn."
        common = _in_all(of_op)
        if common:
            note += f" All cases are {'-'.join(common)}."
        draw = partial(_draw_shares, of_op[::every], roof, looks, common)
        result.append(Figure(f"{op}: share of the roof", draw, note))
    return tuple(result)


def _share(entry: CaseRow, roof: str) -> float:
    """Return the share of a row, for a picture: 0 where there is none that can be drawn."""
    value = share_of(entry.row, roof)
    return value if drawable(value, most=100) else 0.0


def _in_all(cases: Sequence[CaseRows]) -> dict[str, None]:
    """Return the parts of a name that all cases have, which a picture names once."""
    parts = [dict.fromkeys(case.title.split("-")) for case in cases]
    common = dict.fromkeys(part for part in parts[0] if all(part in other for other in parts))
    return {} if any(len(common) == len(part) for part in parts) else common


def _draw_shares(
    cases: Sequence[CaseRows],
    roof: str,
    looks: dict[str, dict[str, Any]],
    common: Collection[str],
    prefix: str,
) -> str:
    """Shares of the roof as SVG: cases down, a mark for each kernel.

    Args:
        looks: the mark and the colour of each kernel.
        common: parts of cases' names that are left out.
    """
    timed = {row.row.kernel for case in cases for row in case.rows}
    kernels = [kernel for kernel in looks if kernel in timed]
    titles = ["-".join(p for p in case.title.split("-") if p not in common) for case in cases]

    def draw(figure: Drawing) -> None:
        longest = max(len(label(title, _LABEL)) for title in titles)
        axes = placed(figure, left_inches=0.3 + _LETTER_INCHES * longest)[0]
        for place, kernel in enumerate(kernels):
            places = [
                (100 * _share(case_row, roof), row)
                for row, case in enumerate(cases)
                for case_row in case.rows
                if case_row.row.kernel == kernel and _share(case_row, roof)
            ]
            if places:
                axes.plot(
                    *zip(*places, strict=True),
                    **looks[kernel],
                    label=label(kernel, 32) if place < _MOST_NAMES else None,
                )
        axes.set_yticks(range(len(cases)), [label(title, _LABEL) for title in titles], fontsize=8)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.set_xlim(0, max(100.0, axes.get_xlim()[1]))
        axes.axvline(100, color=INK, linewidth=1.2)
        axes.set_xlabel(f"% of {roof}")
        axes.grid(visible=True)
        legend(axes)

    named = min(len(kernels), _MOST_NAMES)
    about = f"Share of the roof of {len(kernels)} kernels on {len(cases)} cases"
    return drawn(
        draw, prefix, about, inches=(10.4, max(1.4 + 0.24 * len(cases), 0.8 + 0.18 * named))
    )
