"""Launch plans: what has one, when it is used, and that it launches what Triton's launch does."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton import knobs

from kernel_workbench.kernels import launch_plan
from kernel_workbench.kernels.attention import attention, attention_with_lse, hopper
from kernel_workbench.kernels.attention.hopper import descriptor
from kernel_workbench.kernels.attention.hopper_kernel import hopper_kernel
from kernel_workbench.kernels.attention.problem import AttentionError
from kernel_workbench.kernels.device import is_told, told_multiprocessors
from kernel_workbench.kernels.layer_norm import layer_norm, rms_norm

_SIZES = (1, 4, 2, 64)  # of q, k and v
_IS_CHECKED = pytest.mark.skipif(
    triton.__version__ not in launch_plan.CHECKED_VERSIONS,
    reason=f"nobody has read the launch of Triton {triton.__version__}",
)


def _aligned(*sizes: int, dtype: torch.dtype = torch.bfloat16, off: int = 0) -> Tensor:
    """Zeros at a multiple of 16 bytes, and so many elements on."""
    memory = torch.zeros(torch.Size(sizes).numel() + 64, dtype=dtype)
    size = memory.element_size()
    start = -memory.data_ptr() % 16 // size + off
    return memory[start : start + torch.Size(sizes).numel()].view(sizes)


def _tensors() -> tuple[Tensor, Tensor, Tensor]:
    return _aligned(*_SIZES), _aligned(*_SIZES), _aligned(*_SIZES)


class _Driver:
    """Triton's, without a GPU: launches are noted, and a descriptor is what it is made of."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.stream = 7
        self.utils = SimpleNamespace(
            launch=self.launch, fill_tma_descriptor=_described, fill_tma_descriptor_tiled=_described
        )

    def launch(self, *arguments: object) -> None:
        self.launches.append(arguments)

    def get_current_stream(self, _: int) -> int:
        return self.stream


def _described(*said: object) -> tuple[object, ...]:
    return "descriptor", *(tuple(each) if isinstance(each, list) else each for each in said)


class _Compiled:
    """A compiled kernel: Triton's own launcher of the arguments of `hopper_kernel`."""

    packed_metadata = (4, 1, 1024)
    function = 99

    def __init__(self, driver: _Driver, *, scratch: int = 0, backend: str = "cuda") -> None:
        module: Any = importlib.import_module("triton.backends.nvidia.driver")
        box = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "fp4_padded": False}
        boxes = [{**box, "block_size": [1, 1, rows, 64]} for rows in (64, 128, 128, 64)]
        self.metadata = SimpleNamespace(
            tensordesc_meta=boxes,
            target=SimpleNamespace(backend=backend),
            global_scratch_size=scratch,
            profile_scratch_size=0,
        )
        kinds = ["tensordesc<bf16[1, 1, 64, 64]>"] * 4 + ["*fp32"] * 3 + ["i32"] * 9 + ["fp32"] * 3
        kinds += ["i32", "constexpr", "*fp32"] + ["i32"] * 6 + ["fp32"]  # no bias
        signature = dict(zip(hopper_kernel.arg_names, kinds + ["constexpr"] * 5, strict=True))
        self.run = object.__new__(module.CudaLauncher)
        vars(self.run).update(
            num_ctas=1, global_scratch_size=0, global_scratch_align=1, profile_scratch_size=0,
            profile_scratch_align=1, launch_cooperative_grid=False, launch_pdl=False,
            arg_annotations=["annotations"], kernel_signature=b"signature",
            launch=module.wrap_handle_tensordesc(driver.launch, signature, boxes),
        )  # fmt: skip


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    """Triton's driver, and no plans yet."""
    made = _Driver()
    monkeypatch.setattr(launch_plan, "driver", SimpleNamespace(active=made))
    monkeypatch.setattr(triton.runtime.driver, "_active", made)
    monkeypatch.setattr(launch_plan, "CompiledKernel", _Compiled)
    # As it is without our interpreter.
    monkeypatch.setattr(type(hopper_kernel), "run", launch_plan._ORDINARY_RUN)
    _with_places(512, monkeypatch)
    return made


def _with_places(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many plans at most, and none yet."""
    place = lru_cache(maxsize=most)(launch_plan._place.__wrapped__)
    monkeypatch.setattr(launch_plan, "_place", place)


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *scratch: Tensor
) -> tuple[object, ...]:
    boxes = descriptor(q, 64), descriptor(k, 128), descriptor(v, 128), descriptor(out, 64)
    sizes, numbers = (1, 2, 2, 1, 4, 4, 0, 2**30, 0), (0.18, 1.0, 1.44)
    absent = (0, None, lse, 0, 0, 0, 0, 0, 0, 1.0)
    return *boxes, lse, *(scratch or (lse, lse)), *sizes, *numbers, *absent, "causal", "", 2, 2, 240


def _keep(
    driver: _Driver, key: launch_plan.Key | None, compiled: _Compiled | None = None
) -> _Compiled:
    """Keep a plan of a launch with three programs, on tensors that are gone then."""
    q, k, v = _tensors()
    compiled = compiled or _Compiled(driver)
    tensors = q, k, v, _aligned(*_SIZES), _aligned(1, 2, 4, dtype=torch.float32)
    _keep_call(key, compiled, tensors)
    return compiled


def _keep_call(
    key: launch_plan.Key | None,
    compiled: _Compiled,
    tensors: Sequence[Tensor],
    scratch: Sequence[Tensor] = (),
    filled: Sequence[launch_plan.Filled] = (),
) -> None:
    """Keep a plan of a launch on q, k, v, out and lse, with scratch tensors in place of slopes."""
    others = [*scratch, *(tensor for tensor, _ in filled)]
    launched = launch_plan.Launched(hopper_kernel, compiled, (3,), _arguments(*tensors, *others))
    recorded = launch_plan.Recorded([launched], list(scratch), list(filled))
    launch_plan.keep(key, tensors[:3], tensors[3:], recorded)


def _key(
    *tensors: Tensor, entry: str = "hopper", options: tuple[object, ...] = (True, None)
) -> launch_plan.Key | None:
    q, k, v = tensors or _tensors()
    return launch_plan.key_of(entry, (q, k, v), *options)


def _as_addresses(arguments: Iterable[object]) -> list[object]:
    """A launcher's arguments, flat, a tensor as its address."""
    flat: list[object] = []
    for each in arguments:
        flat += _as_addresses(each) if isinstance(each, list | tuple) else [each]
    return [each.data_ptr() if isinstance(each, Tensor) else each for each in flat]


_ANOTHER: dict[str, Callable[[Tensor, Tensor, Tensor], launch_plan.Key | None]] = {
    "entry": lambda q, k, v: _key(q, k, v, entry="attention"),
    "an option": lambda q, k, v: _key(q, k, v, options=(False, None)),
    "a scale": lambda q, k, v: _key(q, k, v, options=(True, 0.5)),
    "a size": lambda q, k, v: _key(q.new_zeros(1, 5, 2, 64), k, v),
    "q's strides": lambda q, k, v: _key(q.transpose(1, 2).contiguous().transpose(1, 2), k, v),
    "k's strides": lambda q, k, v: _key(q, k.transpose(1, 2).contiguous().transpose(1, 2), v),
    "v's strides": lambda q, k, v: _key(q, k, v.transpose(1, 2).contiguous().transpose(1, 2)),
    "a dtype": lambda q, k, v: _key(q.half(), k.half(), v.half()),
    "v's dtype": lambda q, k, v: _key(q, k, v.half()),
    "a device": lambda q, k, v: _key(q.to("meta"), k.to("meta"), v.to("meta")),
    "k's device": lambda q, k, v: _key(q, k.to("meta"), v),
}


@pytest.mark.parametrize("another", _ANOTHER)
def test_calls_that_differ_in_one_thing_have_two_keys(another: str) -> None:
    """And ones that differ in addresses alone have one."""
    tensors = _tensors()
    assert _key(*tensors) == _key(*(each.clone() for each in tensors))
    assert _ANOTHER[another](*tensors) != _key(*tensors)


class _Subclass(Tensor):
    pass


def test_call_that_a_key_does_not_tell_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of a subclass, an option that may change, a zero with a sign; all, if turned off."""
    q, k, v = _tensors()
    assert _key(q, k.as_subclass(_Subclass), v) is None
    assert _key(q, k, v, options=(torch.tensor(1),)) is None
    assert _key(q, k, v, options=([3, -1],)) is None
    assert _key(q, k, v, options=(-0.0,)) is None
    assert launch_plan.planned(None, (q, k, v)) is None
    monkeypatch.setattr(launch_plan, "enabled", False)
    assert _key(q, k, v) is None


@_IS_CHECKED
def test_plan_launches_what_tritons_launcher_does(driver: _Driver) -> None:
    """With the addresses, the outputs and the stream of its own call, and none of another's."""
    compiled = _keep(driver, _key())
    calls = []
    for stream in (8, 9):
        driver.stream = stream
        q, k, v = _tensors()
        made = launch_plan.planned(_key(), (q, k, v))
        assert made is not None
        out, lse = made
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        assert (lse.shape, lse.dtype) == ((1, 2, 4), torch.float32)
        calls.append((stream, q, k, v, out, lse))
    for stream, *tensors in calls:
        head = 3, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None
        compiled.run(*head, *_arguments(*tensors))
    planned, ordinary = driver.launches[:2], driver.launches[2:]
    assert [*map(_as_addresses, planned)] == [*map(_as_addresses, ordinary)]
    for (_, *tensors), launch in zip(calls, planned, strict=True):
        assert {each.data_ptr() for each in tensors} <= set(_as_addresses(launch))


@pytest.mark.parametrize("number", range(3))
def test_tensor_that_is_not_aligned_takes_the_ordinary_launch(driver: _Driver, number: int) -> None:
    """At its first call, which leaves no plan, and at a later one."""
    tensors = list(_tensors())
    tensors[number] = _aligned(*_SIZES, off=1)
    q, k, v = tensors
    made = q, k, v, _aligned(*_SIZES), _aligned(1, 2, 4, dtype=torch.float32)
    _keep_call(_key(), _Compiled(driver), made)
    assert launch_plan.planned(_key(), _tensors()) is None
    _keep(driver, _key())
    assert launch_plan.planned(_key(*tensors), (q, k, v)) is None
    assert not driver.launches


def _enter(_: object) -> None:
    pass


def _watched(*_: object, **__: object) -> None:
    pass


_DOUBTS: dict[str, tuple[object, str, object]] = {
    "a hook before": (knobs.runtime.launch_enter_hook, "calls", [_enter]),
    "a hook after": (knobs.runtime.launch_exit_hook, "calls", [_enter]),
    "a hook that is no chain": (knobs.runtime, "launch_enter_hook", _enter),
    "a hook of stages": (knobs.runtime, "add_stages_inspection_hook", _enter),
    "debugging": (knobs.runtime, "debug", True),
    "instrumentation": (knobs.compilation, "instrumentation_mode", "consan"),
    "a kernel's hook": (hopper_kernel, "pre_run_hooks", [_enter]),
    "a kernel that is debugged": (hopper_kernel, "debug", True),
    "a launch that is replaced": (type(hopper_kernel), "run", _watched),
    "another number of SMs": (launch_plan, "is_told", lambda: True),
}
_DOUBTS_AT_FIRST: dict[str, tuple[object, str, object]] = {
    "a version that nobody has read": (triton, "__version__", "3.6.1"),
    "a launch that was replaced before": (launch_plan, "_ORDINARY_RUN", _watched),
    "a launch that gives no compiled kernel": (launch_plan, "CompiledKernel", str),
}


@_IS_CHECKED
@pytest.mark.parametrize("doubt", _DOUBTS)
def test_plan_is_not_used_in_doubt(
    driver: _Driver, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as there is a doubt."""
    _keep(driver, _key())
    with monkeypatch.context() as patch:
        patch.setattr(*_DOUBTS[doubt])
        assert launch_plan.planned(_key(), _tensors()) is None
    assert launch_plan.planned(_key(), _tensors()) is not None


@_IS_CHECKED
def test_plan_is_not_used_with_another_driver(
    driver: _Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its function is loaded where the first one is."""
    _keep(driver, _key())
    monkeypatch.setattr(launch_plan, "driver", SimpleNamespace(active=_Driver()))
    assert launch_plan.planned(_key(), _tensors()) is None


@pytest.mark.parametrize("doubt", _DOUBTS | _DOUBTS_AT_FIRST)
def test_no_plan_is_kept_in_doubt(
    driver: _Driver, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch while there is a doubt leaves no plan behind."""
    with monkeypatch.context() as patch:
        patch.setattr(*(_DOUBTS | _DOUBTS_AT_FIRST)[doubt])
        _keep(driver, _key())
    assert launch_plan.planned(_key(), _tensors()) is None


def test_no_plan_is_kept_of_what_it_could_not_say(driver: _Driver) -> None:
    """Scratch memory, another backend; k and v that are one tensor, which later ones needn't be."""
    _keep(driver, _key(), _Compiled(driver, scratch=64))
    _keep(driver, _key(), _Compiled(driver, backend="hip"))
    _keep(driver, None)
    q, k, _ = _tensors()
    tensors = q, k, k, _aligned(*_SIZES), _aligned(1, 2, 4, dtype=torch.float32)
    _keep_call(_key(), _Compiled(driver), tensors)
    assert launch_plan.planned(_key(), _tensors()) is None


def _call_tensors() -> tuple[Tensor, ...]:
    return *_tensors(), _aligned(*_SIZES), _aligned(1, 2, 4, dtype=torch.float32)


@_IS_CHECKED
def test_plan_allocates_and_fills_scratch_memory(
    driver: _Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has its own."""
    sums, words = _aligned(8, dtype=torch.float32), _aligned(6, dtype=torch.int64)
    filled = [launch_plan.Filled(words, -1)]
    _keep_call(_key(), _Compiled(driver), _call_tensors(), [sums], filled)
    q, k, v = _tensors()
    memory: list[Tensor] = []
    for name in ("new_empty", "new_full"):
        function = getattr(Tensor, name)

        def noted(*given: Any, _function: Any = function, **named: Any) -> Tensor:  # noqa: ANN401
            memory.append(_function(*given, **named))
            return memory[-1]

        monkeypatch.setattr(Tensor, name, noted)
    assert launch_plan.planned(_key(), (q, k, v)) is not None
    _, _, made, block = memory
    assert (made.tolist(), made.dtype) == ([-1] * 6, torch.int64)
    assert block.nbytes >= sums.nbytes
    assert {made.data_ptr(), block.data_ptr()} <= set(_as_addresses(driver.launches[0]))


def test_no_plan_is_kept_of_a_tensor_that_the_call_did_not_declare(driver: _Driver) -> None:
    """It may be a copy of an argument."""
    tensors = _call_tensors()
    copies = _aligned(8, dtype=torch.float32), _aligned(8, dtype=torch.float32)
    launched = launch_plan.Launched(
        hopper_kernel, _Compiled(driver), (3,), _arguments(*tensors, *copies)
    )
    recorded = launch_plan.Recorded([launched], [copies[0]])
    launch_plan.keep(_key(), tensors[:3], tensors[3:], recorded)
    assert launch_plan.planned(_key(), _tensors()) is None


@_IS_CHECKED
def test_number_of_plans_is_bounded(driver: _Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was used last stays."""
    assert launch_plan._place.cache_info().maxsize == 512
    _with_places(2, monkeypatch)
    keys = [_key(options=(number,)) for number in range(3)]
    _keep(driver, keys[0])
    _keep(driver, keys[1])
    assert launch_plan.planned(keys[0], _tensors()) is not None
    _keep(driver, keys[2])
    found = [launch_plan.planned(keys[each], _tensors()) is not None for each in (2, 0, 1)]
    assert found == [True, True, False]


def test_told_number_of_sms_is_a_doubt() -> None:
    """How many programs there are depends on it."""
    assert not is_told()
    with told_multiprocessors(3):
        assert is_told()


# ---- On a GPU


@pytest.fixture
def gpu(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """One that `hopper` is for, where plans are used."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("needs --device=cuda and sm 90")
    if triton.__version__ not in launch_plan.CHECKED_VERSIONS:
        pytest.skip(f"nobody has read the launch of Triton {triton.__version__}")
    # A worker in this process may have replaced it, to count.
    monkeypatch.setattr(triton.runtime.JITFunction, "run", launch_plan._ORDINARY_RUN)
    launch_plan._place.cache_clear()
    return device


_Call = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]
_CALLS: dict[str, _Call] = {
    "hopper": lambda q, k, v: hopper.hopper(q, k, v, causal=True),
    "attention": lambda q, k, v: attention_with_lse(q, k, v, causal=True),
}
_GPU_SIZES = {"large": (33, 128, 4, 64), "small": (8, 128, 16, 64)}  # hopper's by dispatch; flash's


def _drawn(device: torch.device, sizes: tuple[int, ...], seed: int) -> Sequence[Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    return [torch.randn(sizes, generator=generator, device=device).bfloat16() for _ in range(3)]


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def _ordinary(call: _Call, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_plan, "enabled", False)
        return call(*tensors)


def _planned(call: _Call, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Its second call, which is launched by a plan."""
    call(*tensors)
    run, planned = launch_plan.CallPlan.run, []

    def noted(plan: launch_plan.CallPlan, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        outputs = run(plan, inputs)
        planned.append(outputs is not None)
        return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_plan.CallPlan, "run", noted)
        made = call(*tensors)
    assert planned
    assert all(planned)
    return made


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("sizes", _GPU_SIZES)
def test_planned_call_gives_the_same_bits(gpu: torch.device, call: str, sizes: str) -> None:
    """With other addresses than the first call's, and on another stream."""
    first, second = (_drawn(gpu, _GPU_SIZES[sizes], seed) for seed in (1, 2))
    assert _equal(_planned(_CALLS[call], first), _ordinary(_CALLS[call], first))
    expected = _ordinary(_CALLS[call], second)
    assert _equal(_planned(_CALLS[call], second), expected)
    torch.cuda.synchronize(gpu)
    stream = torch.cuda.Stream(gpu)
    with torch.cuda.stream(stream):
        late = [torch.zeros_like(each) for each in second]
        torch.cuda._sleep(20_000_000)  # a launch on another stream reads zeros
        for each, value in zip(late, second, strict=True):
            each.copy_(value)
        made = _planned(_CALLS[call], late)
    stream.synchronize()
    assert _equal(made, expected)


@pytest.mark.parametrize("call", _CALLS)
def test_call_with_other_strides_gives_the_same_bits(gpu: torch.device, call: str) -> None:
    """After a call with packed ones; and one at an odd address, which no plan is used for."""
    tensors = _drawn(gpu, _GPU_SIZES["large"], 3)
    expected = _planned(_CALLS[call], tensors)
    apart = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in tensors]
    assert _equal(_planned(_CALLS[call], apart), expected)
    memory = torch.empty(tensors[0].numel() + 1, dtype=tensors[0].dtype, device=gpu)
    odd = memory[1:].view(tensors[0].shape).copy_(tensors[0])
    if call == "hopper":
        with pytest.raises(AttentionError, match="16-byte"):
            hopper.hopper(odd, *tensors[1:], causal=True)
    else:
        given = [odd, *tensors[1:]]
        assert _equal(_CALLS[call](*given), _ordinary(_CALLS[call], given))


def test_plan_is_captured_in_a_graph(gpu: torch.device) -> None:
    """It launches on the stream that is captured."""
    tensors = _drawn(gpu, _GPU_SIZES["large"], 4)
    expected = _planned(_CALLS["hopper"], tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = _CALLS["hopper"](*tensors)
    for each in made:
        each.zero_()
    graph.replay()
    assert _equal(made, expected)


def test_second_device_has_plans_of_its_own(gpu: torch.device) -> None:
    """Whichever device is current."""
    if torch.cuda.device_count() == 1:
        pytest.skip("needs two GPUs")
    other = torch.device("cuda", (gpu.index or 0) + 1)
    tensors = _drawn(gpu, _GPU_SIZES["large"], 5)
    expected = _planned(_CALLS["hopper"], tensors)
    there = [each.to(other) for each in tensors]
    made = _planned(_CALLS["hopper"], there)
    assert {each.device for each in made} == {other}
    assert _equal([each.to(gpu) for each in made], expected)
    with torch.cuda.device(other):
        assert _equal(_planned(_CALLS["hopper"], tensors), expected)


def _gradients(function: Callable[..., Tensor]) -> _Call:
    """Return the call of a function and of its gradients, with a dy that depends on the inputs."""

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        given = [tensor.detach().requires_grad_() for tensor in tensors]
        y = function(*given)
        return y, *torch.autograd.grad(y, given, y.detach().flip(0).contiguous())

    return call


_GRADIENTS: dict[str, tuple[_Call, tuple[tuple[int, ...], ...]]] = {
    "layer_norm, rows in registers": (_gradients(layer_norm), ((64, 256), (256,), (256,))),
    "layer_norm, rows of a batch": (_gradients(layer_norm), ((4, 16, 512), (512,), (512,))),
    "layer_norm, rows shared": (_gradients(layer_norm), ((64, 16384), (16384,), (16384,))),
    "layer_norm, columns": (_gradients(layer_norm), ((32, 2**18), (2**18,), (2**18,))),
    "layer_norm without a weight": (_gradients(layer_norm), ((64, 256),)),
    "rms_norm": (_gradients(rms_norm), ((64, 256), (256,))),
    "rms_norm, rows shared": (_gradients(rms_norm), ((64, 16384), (16384,))),
    "attention": (_gradients(attention), ((2, 256, 8, 64),) * 3),
    "attention, causal": (_gradients(partial(attention, causal=True)), ((2, 256, 8, 128),) * 3),
    "attention, no order": (
        _gradients(partial(attention, deterministic=False)), ((8, 1024, 16, 64),) * 3,
    ),
    "attention, few key heads": (
        _gradients(attention), ((2, 256, 8, 64), (2, 256, 2, 64), (2, 256, 2, 64)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _GRADIENTS)
def test_planned_gradients_have_the_same_bits(gpu: torch.device, name: str) -> None:
    """With other values and addresses than the first call's; without an order, nearly."""
    call, shapes = _GRADIENTS[name]
    generator = torch.Generator(gpu).manual_seed(6)

    def drawn() -> list[Tensor]:
        return [torch.randn(shape, generator=generator, device=gpu).bfloat16() for shape in shapes]

    first, second = drawn(), drawn()
    for tensors in (first, second):
        planned, ordinary = _planned(call, tensors), _ordinary(call, tensors)
        if "no order" in name:
            for mine, theirs in zip(planned, ordinary, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=2**-6, atol=2**-6)
        else:
            assert _equal(planned, ordinary)
