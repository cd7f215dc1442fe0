"""Ops of flashinfer's trace format: what is read of a definition and its workloads, and refused."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_workbench.oracles.cases.distributions import addends_vary
from kernel_workbench.oracles.op import Case, Numerics, OutputForm, required
from kernel_workbench.oracles.reference import OpError, ReferenceOp
from kernel_workbench.oracles.reference.definitions import read_definition, unsaid
from tests.builders.definitions import (
    ADD_RMS_NORM,
    ATTENTION,
    LABELLED,
    MASKED,
    PACKED_CONVOLUTION,
    PAGED,
    PRODUCT,
    RMS_NORM,
    ROPE,
    SCALED,
    SILU_AND_MUL,
    SOFTMAX,
    Definition,
    definition,
    workload,
    written,
)

CPU = torch.device("cpu")
_SIZES = {"m": 5, "n": 64, "batch_size": 5, "M": 5, "rows": 5, "tokens": 5, "heads": 3}
_PAGES = {"batch": 4, "pages": 7, "len_indptr": 5, "num_indices": 11}
_Read = Callable[[Definition], ReferenceOp]
_SCALARS = {"eps": 1e-3, "sm_scale": 0.25, "temperature": 0.5}


def _attention(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> tuple[Tensor, ...]:
    keys, values = (each.repeat_interleave(2, 2).permute(0, 2, 1, 3) for each in (k, v))
    logits = (q[:, :, None] @ keys.mT).squeeze(2) * sm_scale
    out = (logits.softmax(-1)[:, :, None] @ values).squeeze(2)
    return out, logits.exp().sum(-1).log2()


def _rope(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.complex(q[..., :16], q[..., 16:]) * torch.complex(cos, sin)[:, None]
    return torch.cat((turned.real, turned.imag), -1)


def _paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    sm_scale: float,
) -> tuple[Tensor, ...]:
    keys, values = (each[kv_indices, 0].repeat_interleave(2, 1) for each in (k_cache, v_cache))
    logits = torch.einsum("bhd,shd->bhs", q, keys) * sm_scale
    at = torch.arange(len(kv_indices))
    mine = (at >= kv_indptr[:-1, None]) & (at < kv_indptr[1:, None])
    logits = logits.masked_fill(~mine[:, None], -math.inf)
    weights = logits.softmax(-1).nan_to_num(0)
    return torch.einsum("bhs,shd->bhd", weights, values), logits.logsumexp(-1)


# Each definition, and what it computes, written another way.
_CLOSED: list[tuple[Definition, Callable[..., Any]]] = [
    (
        RMS_NORM,
        lambda hidden_states, weight: functional.rms_norm(hidden_states, [64], weight, 1e-5),
    ),
    (
        ADD_RMS_NORM,
        lambda x, residual, weight, eps: (
            functional.rms_norm(x + residual, [64], weight, eps),
            x + residual,
        ),
    ),
    (PRODUCT, lambda A, B: torch.einsum("mk,nk->mn", A, B)),  # noqa: N803  # the format's names
    (SOFTMAX, lambda logits, temperature: functional.softmax(logits / temperature, -1)),
    (SILU_AND_MUL, lambda x: functional.silu(x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :]),
    (ROPE, _rope),
    (ATTENTION, _attention),
    (
        LABELLED,
        lambda logits, target: functional.cross_entropy(logits, target, reduction="none"),
    ),
    (MASKED, lambda x, keep: (x * keep).sum(-1)),
    (PAGED, _paged),
    (SCALED, lambda A, B, scale, bias: scale[:, None] * (A @ B.T) + bias),  # noqa: N803
]
_BY_NAME = pytest.mark.parametrize(
    ("of", "closed"), _CLOSED, ids=[each["name"] for each, _ in _CLOSED]
)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> _Read:
    """The op of a definition, with one workload, read once: its cases are searched for."""
    known: dict[str, ReferenceOp] = {}

    def op_of(of: Definition) -> ReferenceOp:
        if of["name"] not in known:
            sizes = {"b": 3, "h_q": 4, "h_kv": 2, "s": 7} if of is ATTENTION else _SIZES
            sizes = _PAGES if of is PAGED else sizes
            given = {name: _SCALARS.get(name) for name in of["inputs"]}
            line = workload(
                of["name"], {name: sizes[name] for name in of["axes"] if name in sizes}, **given
            )
            folder = tmp_path_factory.mktemp("definition")
            known[of["name"]] = read_definition(*written(folder, of, [line]))
        return known[of["name"]]

    return op_of


def _errors(op: ReferenceOp, case: Case) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return an idealised kernel's errors, beside their bounds."""
    inputs = op.inputs(case, CPU)
    truth, made = op.oracle(case, inputs), op.reference.emulate(case, inputs, Numerics())
    found = {}
    for name, bound in op.bound(case, inputs, truth, Numerics()).items():
        exact = required(truth, name)
        error = (required(made, name).double() - exact).abs()
        found[name] = error[exact.isfinite()], bound.deterministic[exact.isfinite()]
    return found


@_BY_NAME
def test_truth_is_what_a_definition_computes_in_float64(
    of: Definition, closed: Callable[..., Any], read: _Read
) -> None:
    """Whatever it is cast to on the way; outputs have the dtypes that the definition says."""
    op = read(of)
    op.check()
    case = op.cases()[0]
    inputs = op.inputs(case, CPU)
    wide = {
        k: each.double() if isinstance(each, Tensor) and each.is_floating_point() else each
        for k, each in inputs.items()
    }
    expected = closed(**wide)
    expected = expected if isinstance(expected, tuple) else (expected,)
    truth = op.oracle(case, inputs)
    for name, each in zip(op.outputs, expected, strict=True):
        torch.testing.assert_close(truth[name], each, rtol=1e-12, atol=1e-13)
        dtype = getattr(torch, of["outputs"][name]["dtype"])
        assert op.forms(case)[name] == OutputForm(tuple(each.shape), dtype)
    for name, each in of["inputs"].items():
        given = inputs[name]
        assert given == _SCALARS.get(name) or required(inputs, name).dtype == getattr(
            torch, each["dtype"]
        )


@_BY_NAME
def test_idealised_kernel_is_within_the_bound_of_a_definition(
    of: Definition, closed: object, read: _Read
) -> None:
    """On the workload and on generated cases, of which there are enough."""
    del closed
    op = read(of)
    cases = [case for case in op.cases() if case.tier == "ci"]
    assert len(cases) >= 25
    assert cases[0].why == "workload one"
    drawn = (case for case in cases if case.distribution in ("normal", "outliers", "times3"))
    plain = [case for case in drawn if addends_vary(case, ())]
    for case in (cases[0], *plain[:3]):
        for error, bound in _errors(op, case).values():
            assert (error <= bound).all()


_HALVED = """
import torch

def run(x):
    half = {first}
    return {last}
"""


def _bound(folder: Path, first: str, last: str) -> Tensor:
    reference = _HALVED.format(first=first, last=last)
    shape = "bfloat16 m n"
    made = definition("halved", {"m": None, "n": 8}, {"x": shape}, {"y": shape}, reference)
    op = read_definition(written(folder, made)[0])
    case = op.cases()[0]
    inputs = op.inputs(case, CPU)
    return op.bound(case, inputs, op.oracle(case, inputs), Numerics())["y"].deterministic


def test_cast_to_an_arguments_dtype_is_one_that_kernels_make(tmp_path: Path) -> None:
    """Half of the type's spacing more; the output's own cast counts once, written or not."""
    plain = _bound(tmp_path, "x * 3", "half * 3")
    assert torch.equal(_bound(tmp_path, "x.float() * 3", "(half * 3).to(x.dtype)"), plain)
    assert torch.equal(_bound(tmp_path, "x * 3", "(half * 3).bfloat16()"), plain)
    for cast in ("(x * 3).to(x.dtype)", "(x * 3).to(torch.bfloat16)", "(x * 3).type(x.dtype)"):
        wider = _bound(tmp_path, cast, "half * 3")
        assert (wider[plain > 0] > 1.9 * plain[plain > 0]).all()


def test_axes_that_follow_from_others_are_no_sizes(read: _Read) -> None:
    """By an expression, or by a constraint."""
    op = read(SILU_AND_MUL)
    assert {name for case in op.cases() for name, _ in case.sizes} == {"m", "n"}
    attention = read(ATTENTION)
    assert {name for case in attention.cases() for name, _ in case.sizes} == {"b", "h_kv", "s"}
    case = attention.cases()[0]
    assert attention.geometry(case)["q"].shape == (3, 4, 16)


def test_definition_whose_name_has_dots_and_which_imports_math_is_read(tmp_path: Path) -> None:
    """A name with a version in it, and a reference that takes a root of a number."""
    reference = "import math\nimport torch\n\ndef run(A, B):\n    return A @ B.T * math.sqrt(2.0)\n"
    made = PRODUCT | {"name": "product.n64.k32", "reference": reference}
    op = read_definition(written(tmp_path, made)[0])
    op.check()
    case = next(iter(op.cases()))
    assert op.name == "product.n64.k32"
    assert case.id().startswith("product.n64.k32")


def test_definition_without_free_axes_has_cases(tmp_path: Path) -> None:
    """The cases are of one shape, in each layout and distribution."""
    made = definition(
        *("fixed", {"m": 4, "n": 8}, {"x": "float32 m n"}, {"y": "float32 m n"}),
        "def run(x):\n    return x + x",
    )
    op = read_definition(written(tmp_path, made)[0])
    op.check()
    assert len(op.cases()) > 10
    assert {case.sizes for case in op.cases()} == {()}


def test_workloads_are_what_is_timed(tmp_path: Path) -> None:
    """In their order; without any a single free axis is tried at a model's sizes."""
    lines = [workload("gemm_n48_k32", {"M": each}, A=None, B=None) for each in (17, 4)]
    op = read_definition(*written(tmp_path, PRODUCT, lines))
    assert [case.size("M") for case in op.workloads.timed("cuda")] == [17, 4]
    assert [case.size("M") for case in op.cases()[:2]] == [17, 4]
    alone = read_definition(written(tmp_path, PRODUCT)[0])
    assert max(case.size("M") for case in alone.workloads.timed("cuda")) == 16384


def test_scalar_that_nothing_says_is_told(tmp_path: Path, read: _Read) -> None:
    """A default of the reference's is enough."""
    assert unsaid(read_definition(written(tmp_path, ADD_RMS_NORM)[0])) == "eps"
    assert unsaid(read_definition(written(tmp_path, SOFTMAX)[0])) is None
    assert unsaid(read(ADD_RMS_NORM)) is None


def _changed(of: Definition, *path: str, to: object) -> Definition:
    """The definition with another value of a field; None: without it."""
    made = dict(of)
    if len(path) > 1:
        made[path[0]] = _changed(made[path[0]], *path[1:], to=to)
    elif to is None:
        del made[path[0]]
    else:
        made[path[0]] = to
    return made


def _taking(body: str) -> Definition:
    return _changed(PRODUCT, "reference", to=f"import torch\n\ndef run(A, B):\n    {body}\n")


_PLACES = {"shape": ["M"], "dtype": "int32"}
_WRONG = {
    "no reference": (_changed(PRODUCT, "reference", to=None), "reference: Field required"),
    "no run": (_changed(PRODUCT, "reference", to="x = 1"), "it has no function run"),
    "no Python": (_changed(PRODUCT, "reference", to="def run("), "SyntaxError"),
    "other arguments": (
        _changed(PRODUCT, "reference", to="def run(A):\n    return A"),
        "run takes A, and inputs are A, B",
    ),
    "kind of axis": (
        _changed(PRODUCT, "axes", "M", to={"type": "ragged"}),
        "axes.M: Input tag 'ragged' found",
    ),
    "axis of a shape": (
        _changed(PRODUCT, "inputs", "A", "shape", to=["M", "L"]),
        "A.shape: L is no axis",
    ),
    "axis of an expression": (
        _changed(PRODUCT, "axes", "N", to={"type": "expr", "expression": "2 * L"}),
        "L is no axis of type var or const",
    ),
    "constraint on values": (
        _changed(PRODUCT, "constraints", to=["M == indptr[-1]"]),
        "M must be an axis, and indptr an input of one axis",
    ),
    "pages": (
        _changed(PRODUCT, "inputs", "B", to=_PLACES),
        "B.dtype: int32, and nothing says which values of it are valid",
    ),
    "a quarter": (
        _changed(PRODUCT, "inputs", "B", "dtype", to="float4_e2m1"),
        "B.dtype: float4_e2m1 isn't read; there are float32, ",
    ),
    "whole numbers made": (
        _changed(PRODUCT, "outputs", "C", "dtype", to="int64"),
        "C holds real numbers, where its annotation says torch.int64",
    ),
    "a constraint on a tensor": (
        _changed(PRODUCT, "constraints", to=["A.shape[2] == K"]),
        "constraints: 'A.shape[2] == K': A is no axis",
    ),
    "a name with dashes": (_changed(PRODUCT, "name", to="a-b"), "name: String should match"),
    "no rule": (_taking("return torch.linalg.svd(A)[0] @ A @ B.T"), "reference:4: "),
    "random numbers": (_taking("return torch.rand_like(A) @ B.T"), "reference:4: it draws random"),
    "an input that is changed": (
        _taking("return A.mul_(2) @ B.T"),
        "reference:4: it changes its argument A",
    ),
    "other outputs": (_taking("return A"), "C has shape"),
}


@pytest.mark.parametrize("kind", _WRONG)
def test_definition_that_cant_be_read_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    """With its file and the field, or the line of the reference."""
    of, part = _WRONG[kind]
    file, _ = written(tmp_path, of)
    with pytest.raises(OpError) as refused:
        read_definition(file).check()
    told = str(refused.value)
    assert told.startswith(f"{file}: ")
    assert part in told
    assert "\n" not in told


_LINE = workload("fused_add_rmsnorm_h64", {"m": 3}, x=None, residual=None, weight=None, eps=1e-6)
_SAFE = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
_WRONG_LINES: dict[str, tuple[object, str]] = {
    "no such file": (
        _changed(_LINE, "workload", "inputs", "x", to=_SAFE),
        "inputs.x: x.safetensors: x can't be read",
    ),
    "kind of input": (
        _changed(_LINE, "workload", "inputs", "x", to={"type": "zeros"}),
        "workload.inputs.x: Input tag 'zeros' found",
    ),
    "a scalar that is random": (
        _changed(_LINE, "workload", "inputs", "eps", to={"type": "random"}),
        "inputs.eps: its type must be scalar",
    ),
    "an input that is left out": (
        _changed(_LINE, "workload", "inputs", "residual", to=None),
        "inputs.residual: its type must be random",
    ),
    "another scalar": (
        _changed(_LINE, "workload", "inputs", "eps", "value", to=1e-5),
        "inputs.eps: 1e-05, and 1e-06 in",
    ),
    "no axis": (_changed(_LINE, "workload", "axes", to={}), "axes.m: it needs a number"),
    "no JSON": (math.nan, "not JSON"),
}


@pytest.mark.parametrize("kind", _WRONG_LINES)
def test_workload_that_cant_be_read_is_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    """With its file, its line and the field."""
    line, part = _WRONG_LINES[kind]
    file, workloads = written(tmp_path, ADD_RMS_NORM, [_LINE, line])
    with pytest.raises(OpError) as refused:
        read_definition(file, workloads)
    told = str(refused.value)
    assert told.startswith(f"{workloads[0]}, line 2: ")
    assert part in told


def _stored(folder: Path, **tensors: Tensor) -> str:
    """A file of safetensors: how long its header is, the header, the numbers."""
    header, data, dtypes = {}, b"", {torch.int32: "I32", torch.int64: "I64", torch.float32: "F32"}
    for name, each in tensors.items():
        held = each.numpy().tobytes()
        offsets = [len(data), len(data) + len(held)]
        header[name] = {"dtype": dtypes[each.dtype], "shape": each.shape, "data_offsets": offsets}
        data += held
    told = json.dumps(header).encode()
    file = folder / f"{len(list(folder.iterdir()))}.safetensors"
    file.write_bytes(len(told).to_bytes(8, "little") + told + data)
    return f"./{file.name}"


def _paged_line(ends: str) -> Definition:
    given = {"q": None, "k_cache": None, "v_cache": None, "kv_indices": None, "sm_scale": 0.25}
    return workload(PAGED["name"], _PAGES, kv_indptr=ends, **given)


def test_values_that_a_workload_names_are_those_of_its_case(tmp_path: Path) -> None:
    """Each of two of the same sizes has its own; of another seed they are drawn."""
    pytest.importorskip("safetensors")
    ends = [torch.tensor(each, dtype=torch.int32) for each in ([0, 0, 5, 9, 11], [0, 2, 4, 6, 11])]
    lines = [_paged_line(_stored(tmp_path, kv_indptr=each)) for each in ends]
    op = read_definition(*written(tmp_path, PAGED, [lines[0], lines[1], lines[0]]))
    named = [case for case in op.cases() if case.why == "workload one"]
    assert [case.seed for case in named] == [0, 1]
    for case, each in zip(named, ends, strict=True):
        inputs = op.inputs(case, CPU)
        assert torch.equal(required(inputs, "kv_indptr"), each)
        assert op.oracle(case, inputs)["output"] is not None
    other = op.inputs(replace(named[0], seed=7), CPU)
    assert not torch.equal(required(other, "kv_indptr"), ends[0])


def test_values_that_arent_an_inputs_are_refused(tmp_path: Path) -> None:
    """In a sentence that says what the file holds."""
    pytest.importorskip("safetensors")
    file = _stored(tmp_path, kv_indptr=torch.zeros(5, dtype=torch.int64))
    with pytest.raises(OpError, match=r"inputs.kv_indptr: .* holds torch.int64 \(5,\), not"):
        read_definition(*written(tmp_path, PAGED, [_paged_line(file)]))


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("kv_indptr", [0, 4, 2, 9, 11], "kv_indptr must rise from 0 to 11, and doesn't"),
        ("kv_indptr", [0, 2, 4, 9, 10], "kv_indptr must rise from 0 to 11, and doesn't"),
        ("kv_indices", [0] * 9 + [-1, 7], "kv_indices: 1 of 11 aren't from 0 to 6, as 7"),
    ],
)
def test_values_that_no_kernel_can_be_called_on_are_refused(
    name: str, values: list[int], told: str, tmp_path: Path
) -> None:
    """With their file: recorded places of pages lie outside of all pages, now and then."""
    pytest.importorskip("safetensors")
    file = _stored(tmp_path, **{name: torch.tensor(values, dtype=torch.int32)})
    line = _changed(_paged_line(file), "workload", "inputs", "kv_indptr", to={"type": "random"})
    given = {"type": "safetensors", "path": file, "tensor_key": name}
    line = _changed(line, "workload", "inputs", name, to=given)
    with pytest.raises(OpError, match=rf"safetensors: {told}"):
        read_definition(*written(tmp_path, PAGED, [line]))


def test_values_without_what_reads_them_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sentence that says what to install."""
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(OpError, match=r"x\.safetensors is read by safetensors; install it"):
        read_definition(*written(tmp_path, PAGED, [_paged_line("x.safetensors")]))


def test_optional_input_that_nothing_gives_is_left_out(tmp_path: Path) -> None:
    """The reference's default stands for it; a number is passed."""
    op = read_definition(written(tmp_path, SCALED)[0])
    op.check()
    assert op.arguments == ("A", "B", "scale")
    scalar = _changed(SOFTMAX, "inputs", "temperature", "optional", to=True)
    assert read_definition(written(tmp_path, scalar)[0]).arguments == ("logits", "temperature")


def test_places_of_pages_that_are_joined_are_drawn_where_they_are_valid(tmp_path: Path) -> None:
    """Up to the pages' count times their size."""
    made = definition(
        *("rows_of_pages", {"pages": None, "size": 4, "n": 8, "m": None}),
        *({"cache": "bfloat16 pages size n", "places": "int32 m"}, {"y": "bfloat16 m n"}),
        "def run(cache, places):\n    return cache.reshape(-1, cache.shape[-1])[places]",
    )
    op = read_definition(written(tmp_path, made)[0])
    case = replace(op.cases()[0], sizes=(("pages", 5), ("m", 4000)))
    assert int(required(op.inputs(case, CPU), "places").max()) == 5 * 4 - 1


def test_axis_of_outputs_alone_has_the_length_that_fulfils_a_constraint(tmp_path: Path) -> None:
    """Whichever side of it the axis stands on."""
    made = _changed(SILU_AND_MUL, "axes", "both", to={"type": "const", "value": 24})
    op = read_definition(written(tmp_path, made | {"constraints": ["both == 2 * n"]})[0])
    op.check()
    assert op.reference.sizes.keys() == {"m"}
    assert op.forms(op.cases()[0])["out"].shape[1] == 12


def test_definition_whose_small_cases_need_two_small_sizes_has_cases(tmp_path: Path) -> None:
    """A size that must not be above another, of a tensor that is large at several."""
    made = definition(
        *("slots", {"slots": None, "rows": None, "n": 2**20}, {"x": "float32 slots n"}),
        *({"y": "float32 slots n"}, "def run(x):\n    return x + x"),
        constraints=["slots >= rows"],
    )
    op = read_definition(written(tmp_path, made)[0])
    assert any(case.tier == "ci" for case in op.cases())


def test_whole_numbers_are_drawn_where_they_are_valid(read: _Read) -> None:
    """Places of the axis that the reference reads, ends that rise to what they end at, masks."""
    paged, labelled, masked = (read(each) for each in (PAGED, LABELLED, MASKED))
    for case in paged.cases()[1:40]:
        inputs = paged.inputs(case, CPU)
        places, ends = required(inputs, "kv_indices"), required(inputs, "kv_indptr")
        assert 0 <= int(places.min()) <= int(places.max()) < case.size("pages")
        assert (int(ends[0]), int(ends[-1])) == (0, case.size("num_indices"))
        assert bool((ends.diff() >= 0).all())
        assert (places.dtype, len(ends)) == (torch.int32, case.size("batch") + 1)
    assert labelled.reference.labels() == {"target": "n"}
    kept = required(masked.inputs(masked.cases()[0], CPU), "keep")
    assert kept.dtype == torch.bool
    assert bool(kept.any())
    assert not bool(kept.all())


def test_workload_that_breaks_a_constraint_is_refused(tmp_path: Path) -> None:
    """The error states the constraint on the workload's axes."""
    sizes = {"b": 1, "h_q": 3, "h_kv": 2, "s": 4}
    line = workload("gqa_decode_d16", sizes, q=None, k=None, v=None, sm_scale=1.0)
    with pytest.raises(OpError, match=r"h_q must be h_kv \* group, which is 4"):
        read_definition(*written(tmp_path, ATTENTION, [line]))
    others = [workload("another", sizes)]
    with pytest.raises(OpError, match="no line is a workload of gqa_decode_d16"):
        read_definition(*written(tmp_path, ATTENTION, others))


def test_single_pointer_ends_an_axis_of_no_length_alone(tmp_path: Path) -> None:
    """One end has no sequence before it: a reference that loops over sequences returns no row."""
    op = read_definition(written(tmp_path, PACKED_CONVOLUTION)[0])
    allowed = op.allowed
    assert allowed is not None
    case = op.cases()[0]
    sizes = {"total": 12, "len_indptr": 1}
    told = allowed.objection(replace(case, sizes=tuple(sizes.items())))
    assert told == "total must be 0 where indptr has one element"
    for each in op.cases():
        assert each.size("len_indptr") >= 2
        assert required(op.inputs(each, CPU), "x").shape[0] == each.size("total")


def test_truth_of_another_shape_on_one_case_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """The judge would compare tensors of two shapes, and end in its own error."""
    made = definition(
        *("some_rows", {"m": None, "n": 8}, {"x": "float32 m n"}, {"y": "float32 m n"}),
        "def run(x):\n    return x[:9] * 2",
    )
    op = read_definition(written(tmp_path, made)[0])
    case = replace(op.cases()[0], sizes=(("m", 12),))
    with pytest.raises(OpError, match=r"y has shape \(9, 8\) where its annotation says \(12, 8\)"):
        op.oracle(case, op.inputs(case, CPU))
