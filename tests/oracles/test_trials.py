"""Definitions of which some things are found by trying the reference: numbers, axes, constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles.op import Numerics, required
from kernel_workbench.oracles.reference import Lengths, OpError, ReferenceOp
from kernel_workbench.oracles.reference.definitions import read_definition
from tests.builders.definitions import PAGED, Definition, definition, workload, written

pytestmark = pytest.mark.long_run

CPU = torch.device("cpu")

# Sums over parts of rows, between pointers; without a constraint that says where they end.
SEGMENTS = definition(
    *("segment_sums", {"rows": None, "len_indptr": None, "n": 8, "parts": "len_indptr - 1"}),
    *({"x": "float32 rows n", "row_indptr": "int32 len_indptr"}, {"y": "float32 parts n"}),
    """
import torch

def run(x, row_indptr):
    parts = []
    for i in range(len(row_indptr) - 1):
        parts.append(x[int(row_indptr[i]):int(row_indptr[i + 1])].sum(0))
    return torch.stack(parts)
""",
)
# Means over as many places of each table row as its length says; a place is a row of x.
TABLE = definition(
    *("table_means", {"batch": None, "most": None, "rows": None, "n": 8}),
    {"x": "float32 rows n", "table": "int32 batch most", "seq_lens": "int32 batch"},
    {"y": "float32 batch n"},
    """
import torch

def run(x, table, seq_lens):
    means = []
    for b in range(table.shape[0]):
        means.append(x[table[b, :int(seq_lens[b])]].mean(0))
    return torch.stack(means)
""",
)
# Sums over as many pages of each part between pointers as its length says, and no more.
CAUSAL = definition(
    *("part_sums", {"batch": None, "pages": None, "rows": None, "ends": None, "n": 8}),
    {
        "x": "float32 rows n",
        "kv_indptr": "int32 ends",
        "kv_indices": "int32 pages",
        "kv_len_arr": "int32 batch",
    },
    {"y": "float32 batch n"},
    """
import torch

def run(x, kv_indptr, kv_indices, kv_len_arr):
    sums = []
    for b in range(len(kv_len_arr)):
        part = kv_indices[int(kv_indptr[b]):int(kv_indptr[b + 1])]
        total = torch.zeros_like(x[0])
        for i in range(int(kv_len_arr[b]) if len(part) else 0):
            total = total + (i + 1) * x[int(part[i])]
        sums.append(total)
    return torch.stack(sums)
""",
    constraints=["ends == batch + 1"],
)


def _op(folder: Path, of: Definition) -> ReferenceOp:
    op = read_definition(written(folder, of)[0])
    op.check()
    return op


def _changed(of: Definition, before: str, after: str) -> Definition:
    assert before in of["reference"]
    return of | {"reference": of["reference"].replace(before, after)}


def test_pointers_without_a_constraint_rise_to_the_end_of_what_they_part(tmp_path: Path) -> None:
    """They are known by their name, and their end by trying the reference."""
    op = _op(tmp_path, SEGMENTS)
    assert op.reference.pointers == {"row_indptr": "rows"}
    for case in op.cases()[:20]:
        ends = required(op.inputs(case, CPU), "row_indptr")
        assert bool((ends.diff() >= 0).all())
        assert int(ends[-1]) == case.size("rows")


def test_pointers_that_end_at_no_axis_are_refused(tmp_path: Path) -> None:
    """As where a reference reads every second row."""
    of = _changed(SEGMENTS, "x[int", "x[::2][int")
    with pytest.raises(OpError, match=r"row_indptr\.dtype: int32, and nothing says which values"):
        _op(tmp_path, of)


def test_lengths_are_drawn_from_1_to_the_axis_that_they_are_of(tmp_path: Path) -> None:
    """A length of 0 has no mean, and one above the axis isn't read."""
    op = _op(tmp_path, TABLE)
    assert op.reference.lengths() == {"seq_lens": Lengths("most", None)}
    assert op.reference.labels() == {"table": "rows"}
    lengths = []
    for case in op.cases()[:20]:
        drawn = required(op.inputs(case, CPU), "seq_lens")
        assert 1 <= int(drawn.min()) <= int(drawn.max()) <= case.size("most")
        lengths.append(int(drawn.min()) < case.size("most"))
    assert any(lengths)


def test_lengths_of_parts_are_no_longer_than_the_parts(tmp_path: Path) -> None:
    """An empty part has length 0."""
    op = _op(tmp_path, CAUSAL)
    assert op.reference.lengths() == {"kv_len_arr": Lengths(1, "kv_indptr")}
    for case in op.cases()[:20]:
        inputs = op.inputs(case, CPU)
        parts = required(inputs, "kv_indptr").diff()
        lengths = required(inputs, "kv_len_arr")
        assert bool((lengths <= parts).all())
        assert bool(((lengths > 0) == (parts > 0)).all())
        assert op.oracle(case, inputs)["y"] is not None


def test_lengths_that_end_at_no_axis_are_refused(tmp_path: Path) -> None:
    """As where a reference takes a length's square."""
    of = _changed(TABLE, ":int(seq_lens[b])", ":int(seq_lens[b]) ** 2 + 1")
    with pytest.raises(OpError, match=r"seq_lens\.dtype: int32, and nothing says which values"):
        _op(tmp_path, of).inputs(_op(tmp_path, of).cases()[0], CPU)


def test_shape_with_a_whole_number_is_read(tmp_path: Path) -> None:
    """A number of 0 isn't."""
    of = definition(
        *("squeezed", {"rows": None, "n": 8}, {"x": "float32 rows one n"}, {"y": "float32 rows n"}),
        "def run(x):\n    return 2 * x.squeeze(1)",
    )
    of["inputs"]["x"]["shape"] = ["rows", 1, "n"]
    op = _op(tmp_path, of)
    assert op.forms(op.cases()[0])["y"].shape == (op.cases()[0].size("rows"), 8)
    assert required(op.inputs(op.cases()[0], CPU), "x").shape[1] == 1
    of["inputs"]["x"]["shape"] = ["rows", 0, "n"]
    with pytest.raises(OpError, match=r"x\.shape: 0 is no length; write an axis, or 1 or more"):
        _op(tmp_path, of)


def test_axis_that_only_an_output_has_is_as_long_as_the_reference_makes_it(tmp_path: Path) -> None:
    """Where that follows from no size; else it is to be declared."""
    of = definition(
        *("halves", {"rows": None, "n": 24}, {"x": "float32 rows n"}, {"y": "float32 rows half"}),
        "def run(x):\n    return x[:, :x.shape[1] // 2]",
    )
    op = _op(tmp_path, of)
    assert op.forms(op.cases()[0])["y"].shape[1] == 12
    of = of | {"reference": "def run(x):\n    return x[:, :1].expand(len(x), len(x))"}
    with pytest.raises(OpError, match=r"y\.shape: half is no axis, and the reference makes it"):
        _op(tmp_path, of)


def test_whole_numbers_that_the_reference_does_not_take_are_no_input(tmp_path: Path) -> None:
    """Nothing says which of them are valid. Real numbers that it doesn't take are a mistake."""
    inputs = {**PAGED["inputs"], "last_page_len": {"dtype": "int32", "shape": ["batch"]}}
    op = _op(tmp_path, PAGED | {"inputs": inputs})
    assert "last_page_len" not in op.arguments
    inputs["last_page_len"] = {"dtype": "float32", "shape": ["batch"]}
    with pytest.raises(OpError, match=r"run takes q, .*, and inputs are .*last_page_len"):
        _op(tmp_path, PAGED | {"inputs": inputs})


def test_scalar_of_whole_numbers_is_one(tmp_path: Path) -> None:
    """A workload's fraction is refused, in a sentence."""
    of = definition(
        *("largest", {"rows": None, "n": 8}, {"x": "float32 rows n", "k": "int32"}),
        *({"y": "float32 rows n"}, "def run(x, k):\n    return x * x.topk(k).values[:, -1:]"),
    )
    file, lines = written(tmp_path, of, [workload("largest", {"rows": 3}, x=None, k=2)])
    op = read_definition(file, lines)
    op.check()
    assert op.reference.signature.numbers == {"k": 2}
    file, lines = written(tmp_path, of, [workload("largest", {"rows": 3}, x=None, k=2.5)])
    with pytest.raises(OpError, match=r"inputs\.k: 2\.5 is no int32; write a whole number"):
        read_definition(file, lines)


def test_size_that_a_constraint_makes_large_has_cases(tmp_path: Path) -> None:
    """The smallest that fulfils it, and as much more as other sizes are above 1."""
    of = definition(
        *("first_of", {"rows": None, "m": None, "k": 256, "n": 8}, {"x": "float32 rows m n"}),
        *({"y": "float32 rows k n"}, "def run(x):\n    return 2 * x[:, :256]"),
        constraints=["k <= m"],
    )
    op = _op(tmp_path, of)
    assert min(case.size("m") for case in op.cases()) == 256
    values = sorted({case.size("m") for case in op.cases()})
    assert values[:2] == [256, 258]


def test_definition_with_large_constants_is_checked_at_small_ones(tmp_path: Path) -> None:
    """Its cases have its own. Constants that the reference writes as numbers stay as they are."""
    of = definition(
        *("product", {"m": None, "n": 4096, "k": 2048}),
        *({"a": "float32 m k", "b": "float32 n k"}, {"c": "float32 m n"}),
        "def run(a, b):\n    assert b.shape == (4096, 2048)\n    return a @ b.T",
    )
    op = _op(tmp_path, of)
    smaller = op.reference.at_smaller_constants()
    assert [array.axes for array in smaller.signature.arrays] == [("m", 4), (8, 4)]
    assert op.forms(op.cases()[0])["c"].shape[1] == 4096
    written_out = of["reference"].replace("a @ b.T", "a.view(-1, 2048) @ b.T")
    op = _op(tmp_path, of | {"reference": written_out})
    smaller = op.reference.at_smaller_constants()
    assert [array.axes for array in smaller.signature.arrays] == [("m", 2048), (4, 2048)]


def test_one_constant_alone_is_made_smaller_where_others_are_written_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two experts of a large matrix fit where four don't, and no tensor of them is drawn."""
    rows, columns = 8192, 7168
    made = definition(
        *("experts", {"m": None, "e": 32, "n": rows, "k": columns}),
        {"x": "float32 m k", "w": "float32 e n k"},
        {"y": "float32 m n"},
        f"def run(x, w):\n    y = x.new_zeros(x.shape[0], {rows})\n    for one in w:\n"
        f"        y += x[:, {columns - 1}:] * one[:, {columns - 1}]\n    return y",
    )
    drawn = []
    empty = torch.empty

    def counted(*shape: Any, **named: Any) -> Tensor:  # noqa: ANN401  # torch's own
        result = empty(*shape, **named)
        drawn.append(0 if result.is_meta else result.numel())
        return result

    monkeypatch.setattr(torch, "empty", counted)
    smaller = read_definition(written(tmp_path, made)[0]).reference.at_smaller_constants()
    assert smaller.signature.arrays[1].axes == (2, rows, columns)
    assert max(drawn) < 2**20


def test_definition_that_is_wrong_at_small_constants_is_refused(tmp_path: Path) -> None:
    """In a sentence with the reference's line."""
    of = definition(
        *("product", {"m": None, "n": 4096, "k": 2048}),
        *({"a": "float32 m k", "b": "float32 n k"}, {"c": "float32 m n"}),
        "import torch\n\ndef run(a, b):\n    return torch.rand_like(a) @ b.T",
    )
    with pytest.raises(OpError, match="reference:4: it draws random numbers"):
        _op(tmp_path, of)


ROUTED = definition(
    *("routed", {"m": None, "e": 6, "n": 8}, {"x": "float32 m n", "logits": "float32 m e"}),
    {"y": "float32 m n"},
    """
import torch

def run(x, logits):
    chosen = logits.sigmoid().topk(2, dim=-1).indices
    y = torch.zeros_like(x)
    for e in range(logits.shape[1]):
        mask = (chosen == e).any(1)
        if not mask.any():
            continue
        rows = mask.nonzero().squeeze(1)
        y.index_add_(0, rows, x[rows] * (e + 1))
    return y
""",
)


def test_reference_that_goes_by_values_is_bounded_where_they_are_certain(tmp_path: Path) -> None:
    """Experts are chosen by numbers that kernels round, and far enough apart."""
    op = _op(tmp_path, ROUTED)
    case = op.cases()[0]
    inputs = op.inputs(case, CPU)
    truth = op.oracle(case, inputs)
    bound = op.bound(case, inputs, truth, Numerics())["y"]
    assert bound.powerless is None
    computed = required(op.reference.emulate(case, inputs, Numerics()), "y").double()
    assert bool(((computed - required(truth, "y")).abs() <= bound.deterministic).all())
    assert float(bound.deterministic.max()) < 1e-4


def test_bound_says_nothing_where_a_kernel_may_choose_others(tmp_path: Path) -> None:
    """Two experts are as good as each other but for a rounding."""
    op = _op(tmp_path, ROUTED)
    case = op.cases()[0]
    inputs = op.inputs(case, CPU)
    logits = required(inputs, "logits")
    logits[:] = torch.tensor([3.0, 2.0, 0.0, 0.0, 0.0, 0.0])  # equal ones aren't chosen
    bound = op.bound(case, inputs, op.oracle(case, inputs), Numerics())["y"]
    assert bound.powerless is None
    logits[0] = torch.tensor([3.0, 2.0, 2.0 + 2**-20, 0.0, 0.0, 0.0])
    bound = op.bound(case, inputs, op.oracle(case, inputs), Numerics())["y"]
    assert bound.powerless is not None
    assert bool(bound.powerless.all())
