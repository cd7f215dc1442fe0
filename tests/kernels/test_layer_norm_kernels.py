"""Our layer-norm kernels, beyond what the suite asks of every kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels import device as devices
from kernel_workbench.kernels.launch_plan import Recorded
from kernel_workbench.kernels.layer_norm import column_owning, row_persistent, row_sharing
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import OPTION_SETS, layer_norm_case
from kernel_workbench.oracles.op import Case
from tests.builders.emulated_layer_norm import PLAIN
from tests.builders.strict_calls import violation_of

_Kernel = Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]
_KERNELS: dict[str, _Kernel] = {
    "row_persistent": row_persistent.row_persistent,
    "column_owning": column_owning.column_owning,
    "row_sharing": row_sharing.row_sharing,
}


def _outputs(kernel: _Kernel, case: Case, device: torch.device) -> list[Tensor]:
    inputs = LAYER_NORM_BACKWARD.inputs(case, device)
    return [each for each in kernel(**inputs, aligned=False) if each is not None]


def _case(m: int, n: int, *options: str) -> Case:
    return layer_norm_case(m, n, (torch.float32, torch.float32), options=frozenset(options))


@pytest.mark.parametrize("name", _KERNELS)
def test_device_independent_result_has_the_same_bits_on_every_device(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 3 or 20 SMs: the bits are the same with the option, and differ without it."""

    def on(sms: int, *options: str) -> list[Tensor]:
        monkeypatch.setenv(devices.SIMULATED_MULTIPROCESSORS_VARIABLE, str(sms))
        monkeypatch.setattr(devices, "_multiprocessors", lambda _: sms)
        return _outputs(_KERNELS[name], _case(260, 40, *options), device)

    fixed = [on(sms, "device_independent") for sms in (1, 3, 20)]
    for other in fixed[1:]:
        assert all(torch.equal(a, b) for a, b in zip(fixed[0], other, strict=True))
    free = [on(sms) for sms in (1, 20)]
    assert not all(torch.equal(a, b) for a, b in zip(*free, strict=True))


@pytest.mark.parametrize("name", _KERNELS)
def test_row_of_dx_does_not_depend_on_the_rows_beside_it(name: str, device: torch.device) -> None:
    """dx of the first rows has the same bits in a batch of 5 rows and in one of 41."""
    inputs = LAYER_NORM_BACKWARD.inputs(_case(41, 72), device)
    few = {
        key: value[:5] if isinstance(value, Tensor) and key != "weight" else value
        for key, value in inputs.items()
    }
    whole = _KERNELS[name](**inputs, aligned=False)[0]
    assert torch.equal(_KERNELS[name](**few, aligned=False)[0], whole[:5])


@pytest.mark.parametrize("name", _KERNELS)
def test_gradient_that_is_not_packed_is_refused(name: str, device: torch.device) -> None:
    """A strided gradient to accumulate into is refused in a sentence, not written around."""
    inputs = LAYER_NORM_BACKWARD.inputs(_case(3, 8), device)
    strided = torch.zeros(16, device=device)[::2]
    with pytest.raises(ValueError, match="packed"):
        _KERNELS[name](**inputs, aligned=False, dweight=strided, dbias=strided)


def test_every_rank_gives_the_same_gradients(device: torch.device) -> None:
    """[6, 24], [2, 3, 24] and [6, 1, 24] are the same rows."""
    inputs = LAYER_NORM_BACKWARD.inputs(_case(6, 24), device)
    flat = _KERNELS["row_persistent"](**inputs, aligned=False)
    for shape in ((2, 3), (6, 1)):
        folded = {
            key: value.reshape(*shape, *value.shape[1:])
            if isinstance(value, Tensor) and key != "weight"
            else value
            for key, value in inputs.items()
        }
        dx, *gradients = _KERNELS["row_persistent"](**folded, aligned=False)
        assert dx.shape == (*shape, 24)
        assert torch.equal(dx.reshape(6, 24), flat[0])
        for got, expected in zip(gradients, flat[1:], strict=True):
            assert got is not None
            assert expected is not None
            assert torch.equal(got, expected)


@pytest.mark.parametrize("far", ["dy", "x", "dresidual"])
@pytest.mark.parametrize("name", _KERNELS)
def test_rows_past_31_bits_apart_are_read(name: str, far: str, device: torch.device) -> None:
    """A row stride of 2^31 elements, whose product with a load's width 32 bits don't hold."""
    if device.type != "cpu":
        pytest.skip("the strict interpreter is for machines without a GPU")
    kernel, generator = _KERNELS[name], torch.Generator().manual_seed(0)
    dy, x, dresidual = (torch.randn(2, 64, generator=generator).bfloat16() for _ in range(3))
    inputs = {"dy": dy, "x": x, "dresidual": dresidual, "weight": torch.ones(64).bfloat16()}
    inputs |= {"mean": torch.zeros(2), "rstd": torch.ones(2)}
    apart = torch.empty(2**31 + 64, dtype=torch.bfloat16).as_strided((2, 64), (2**31, 1))
    moved = {**inputs, far: apart.copy_(inputs[far])}
    got: list[Tensor | None] = []
    said = violation_of(lambda: got.extend(kernel(**moved, aligned=True)), tuple(moved.values()))
    assert said is None
    for mine, theirs in zip(got, kernel(**inputs, aligned=False), strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)


_F32, _F16, _BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    "options",
    [frozenset[str](), *OPTION_SETS],
    ids=lambda options: " ".join(sorted(options)),
)
@pytest.mark.parametrize(
    ("n", "dtypes"),
    [
        (24, (_F32, _F32)),
        (264, (_BF16, _BF16)),
        (1029, (_F16, _F32)),
        (1536, (_F32, _F32)),
        (5000, (_BF16, _F32)),
        (6144, (_F16, _F16)),
    ],
)
def test_row_of_two_blocks_is_right_with_every_option(
    n: int, dtypes: tuple[torch.dtype, torch.dtype], options: frozenset[str], device: torch.device
) -> None:
    """The second block has 1 to all columns; in tiles of one row and of two, aligned and not."""
    case = layer_norm_case(5, n, dtypes, options=options)
    for rows, aligned in product((1, 2), (True, False) if n % 8 == 0 else (False,)):
        inputs = LAYER_NORM_BACKWARD.inputs(case, device)
        truth = LAYER_NORM_BACKWARD.oracle(case, inputs)
        bounds = LAYER_NORM_BACKWARD.bound(case, inputs, truth, PLAIN)
        tile = row_persistent.RowTile(rows, 4, 1, 2, blocks=2)
        got = _KERNELS["row_persistent"](**inputs, aligned=aligned, tile=tile)
        for (name, exact), mine in zip(truth.items(), got, strict=True):
            assert (mine is None) == (exact is None)
            if mine is not None and exact is not None:
                assert bool(((mine.double() - exact).abs() <= bounds[name].deterministic).all())


def _laid_out(tensor: Tensor, offset: int, gap: int) -> Tensor:
    """Return a copy of a matrix [m, n] that begins at an offset, with gaps between rows."""
    m, n = tensor.shape
    memory = torch.empty(offset + m * (n + gap) + 16, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided((m, n), (n + gap, 1), offset).copy_(tensor)


# Columns and dtypes; then of x, dy and a residual the first element, and elements between rows.
_SHIFTED = {
    "odd": ((1023, (_BF16, _BF16)), (0, 0), (0, 0), (0, 0)),
    "far offset": ((517, (_F32, _F32)), (4, 4), (0, 0), (8, 8)),
    "gaps": ((523, (_F16, _F32)), (8, 8), (0, 16), (16, 0)),
    "even": ((1030, (_BF16, _F32)), (0, 0), (8, 8), (0, 16)),
    "widest": ((8191, (_F32, _F32)), (4, 0), (0, 0), (0, 0)),
    "unlike dx": ((516, (_F32, _F32)), (1, 0), (5, 4), (9, 8)),
}


@pytest.mark.parametrize("options", ["", "rms_norm no_bias", "residual", "no_weight"])
@pytest.mark.parametrize("name", _SHIFTED)
def test_rows_are_loaded_by_whole_vectors_from_a_shifted_start(
    name: str, options: str, device: torch.device
) -> None:
    """Rows that begin alike past 16 bytes are right, and no byte beside them is read.

    Only the strict interpreter sees such a read, and a false promise about an address.
    """
    (n, dtypes), *places = _SHIFTED[name]
    case = layer_norm_case(21, n, dtypes, options=frozenset(options.split()))
    inputs = LAYER_NORM_BACKWARD.inputs(case, device)
    for key, place in zip(("x", "dy", "dresidual"), places, strict=True):
        tensor = inputs.get(key)
        if isinstance(tensor, Tensor):
            inputs[key] = _laid_out(tensor, *place)
    recorded, got = Recorded(), list[Tensor | None]()
    kernel = partial(_KERNELS["row_persistent"], **inputs, aligned=False, recorded=recorded)
    if device.type == "cpu":
        tensors = tuple(value for value in inputs.values() if isinstance(value, Tensor))
        assert violation_of(lambda: got.extend(kernel()), tensors) is None
    else:
        got.extend(kernel())
    launched = recorded.launches[0]
    arguments = dict(zip(launched.kernel.arg_names, launched.arguments, strict=True))
    assert arguments["SHIFTED"] == (0 if name == "unlike dx" else 16 // dtypes[0].itemsize)
    truth = LAYER_NORM_BACKWARD.oracle(case, inputs)
    bounds = LAYER_NORM_BACKWARD.bound(case, inputs, truth, PLAIN)
    for (output, exact), mine in zip(truth.items(), got, strict=True):
        assert (mine is None) == (exact is None)
        if mine is not None and exact is not None:
            assert bool(((mine.double() - exact).abs() <= bounds[output].deterministic).all())


def test_blocks_hold_every_row() -> None:
    """Blocks are powers of 2; two are narrower than one where a tile takes two by itself."""
    for n, (key, blocks) in product(range(1, 8193), product(row_persistent._TILES, (1, 2))):
        first, rest = row_persistent._blocks(n, blocks)
        assert first & (first - 1) == rest & (rest - 1) == 0
        assert (first < n <= first + rest) if rest else (n <= first)
        cut = row_persistent._TILES[key][min(w for w in row_persistent._TILES[key] if w >= n)]
        if cut.blocks == 2:
            assert sum(row_persistent._blocks(n, 2)) < row_persistent._blocks(n, 1)[0]
