"""A registration that can't be what was meant is refused in one sentence, as its file is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels import registry
from kernel_workbench.kernels.registry import KernelError, all_kernels, load_file

F32, F16 = torch.float32, torch.float16

_FILE = """
import torch
from kernel_workbench import ATTENTION_FORWARD, LAYER_NORM_BACKWARD, Domain, kernel
from kernel_workbench import LayerNormNumerics, Numerics
F16 = torch.float16

@kernel({arguments})
def mine(**arguments):
    pass
"""
_LINE = 7
_NORM = "LAYER_NORM_BACKWARD"

# Arguments of a domain beside its dtypes, of a kernel beside its domain, and of both, and a
# part of the one sentence that refuses them.
_WRONG_DOMAINS = {
    "weight_dtypes=()": (
        "weight_dtypes is empty, so the kernel serves no case; write (torch.float32,), or"
    ),
    "devices=()": "devices is empty, so the",
    "weight_dtypes=('float',)": "weight_dtypes has 'float'; did you mean torch.float?",
    "strides='contigous'": "Domain: strides is 'contigous'; did you mean contiguous?",
    "alignment=0": "alignment is 0; write a p",
    "alignment=-16": "alignment is -16;",
    "alignment=12": "write a power of two, in",
    "alignment=16.0": "power of two",
    "unaligned='dy'": "unaligned is the string 'dy'; write ('dy',)",
    "sm=90": "sm is 90; write the least and the",
    "sm=('80', '90')": "as (80, 121)",
    "sm=(90, 80)": "sm is (90, 80);",
    "since={'bfloat16': 80}": "mean torch.bfloat16?",
    "since=80": "since is 80; write a dict",
    "sizes={'s_q': (1, 64)}": (
        "its domain names s_q, and layer_norm_backward has no such size; there are m, n"
    ),
    "sizes={'n': (64, 1)}": "sizes['n'] is (64, 1), which no size is within",
    "sizes={'n': 64}": "sizes['n'] is 64;",
    "sizes={'n': (1, 2e3)}": "sizes['n'] is (1, 2000.0); write whole numbers, or None for no limit",
    "sizes=['n']": "write a dict, as {'n': (",
    "relations=('s_kv >= n',)": "its domain names s_kv, and layer_norm_backward has no such size",
    "relations=('m = n',)": (
        "Domain: relations has 'm = n'; write two sizes as 's_kv >= s_q' (or ==, <=, >, <), or"
    ),
    "relations=('exit() or m == n',)": "Domain: relations has 'exit() or m == n'; write two sizes",
    "relations='m == n'": "relations is the string 'm == n'; write ('m == n',)",
    "features=('no_bais',)": (
        "a feature that layer_norm_backward doesn't have: no_bais; did you mean no_bias?"
    ),
    "features='no_bias'": "features is the string 'no_bias'; write ('no_bias',)",
    "devices=('cdua',)": "devices is 'cdua'; did you mean cuda?",
    "devices='cuda'": "write ('cuda',)",
    "interpretable='no'": "interpretable is 'no'; write True or False",
    "also='m > 1'": "also is 'm > 1'; write a function",
    "stride='rows'": "unexpected keyword argument 'stride'; did you mean strides?",
    "weight_dtypes=[F16, F16]": "Domain: weight_dtypes has torch.float16 twice; write it once",
    "features=('',)": "Domain: features has '', which names nothing; leave it out",
    "features=('no_bias', 'no_bias')": "Domain: features has 'no_bias' twice; write it once",
    "devices=('cpu', 'cuda', 'cpu')": "Domain: devices has 'cpu' twice; write it once",
    "devices=(' ',)": "Domain: devices has ' ', which names nothing; leave it out",
    "unaligned=('',)": "Domain: unaligned has '', which names nothing; leave it out",
    "unaligned=['x', 'x']": "Domain: unaligned has 'x' twice; write it once",
    "relations=('m >= n', 'm >= n')": "Domain: relations has 'm >= n' twice; write it once",
    "relations=('',)": "Domain: relations has '', which names nothing; leave it out",
    "sizes={'': (1, 8)}": "Domain: sizes has '' for a name; write a string, as 'n'",
}
_WRONG_KERNELS = {
    "same_code_as='row_persistent'": (
        "same_code_as is for the workbench's own kernels; leave it out"
    ),
    "dispatched=lambda case: True": "dispatched is for the workbench's own kernels; leave it out",
    "returnss=('dx',)": "unexpected keyword argument 'returnss'; did you mean returns?",
    "numerics=Numerics(key_tiles=64)": (
        "unexpected keyword argument 'key_tiles'; did you mean key_tile?"
    ),
    "numerics=Numerics(half_accumulators=64)": (
        "unexpected keyword argument 'half_accumulators'; LayerNormNumerics(...) has it"
    ),
    "numerics=Numerics(casts='products normalized')": (
        "a cast that layer_norm_backward doesn't have: normalized; did you mean normalised?"
    ),
    "numerics={'key_tile': 64}": "numerics is {'key_tile': 64}; write Numerics(...)",
    "name=''": "name is ''; write a string",
    "wraps=' '": "wraps is ' '; write the library's name",
    "numerics=Numerics(casts='p p')": "casts has 'p' twice; write it",
    "numerics=Numerics(casts=('p',))": (
        "casts is ('p',); write names in a string, with spaces between"
    ),
    "numerics=Numerics(gradual_underflow='no')": "gradual_underflow is 'no'; write True or False",
    "numerics=Numerics(batch_invariant='yes')": (
        "batch_invariant is 'yes'; write True, False or None"
    ),
    "numerics=Numerics(key_tile=True)": "key_tile is True; write a whole number",
    "numerics=Numerics(accumulation_roundoff='2**-24')": (
        "accumulation_roundoff is '2**-24'; write a number"
    ),
    "priority='high'": "priority is 'high'; write an int",
    "name=7": "name is 7; write a string",
    "workspace=0": "workspace is 0; write a function, or leave it out",
    "wraps=True": "wraps is True; write the library's name",
    "returns=('dgamma',)": (
        "returns has 'dgamma', which is no output of the op; there are dbias, dweight, dx"
    ),
    "returns=('dbais',)": "did you mean dbias?",
    "returns='dx'": "returns is the string 'dx'; write ('dx',)",
    "returns=()": "returns is empty; name the outputs that it computes",
    "returns=('dbias', 'dx')": "write each once, in the op's order: ('dx', 'dbias')",
    "returns={'dx'}": "in the op's order: ('dx',)",
    "returns=('dx', 'dx')": "in the op's order: ('dx',)",
}
_WRONG = {
    "'layer_norm_backwards', Domain(dtypes=(F16,))": "LAYER_NORM_BACKWARD",
    "'LAYER_NORM_BACKWARD', Domain(dtypes=(F16,))": "LAYER_NORM_BACKWARD",
    "7, Domain(dtypes=(F16,))": "its op is 7, and an op is imported from",
    f"{_NORM}, {{}}": "its domain is {}; write Domain(dtypes=(...), ...)",
    f"{_NORM}, Domain(dtypes=('float16',))": (
        "Domain: dtypes has 'float16'; did you mean torch.float16?"
    ),
    f"{_NORM}, Domain(dtypes=())": (
        "Domain: dtypes is empty, so the kernel serves no case; write (torch.float16,)"
    ),
    f"{_NORM}, Domain(dtypes=[])": "dtypes is empty, so the kernel",
    f"{_NORM}, Domain(dtypes='bf16')": "Domain: dtypes has 'bf16'; did you mean torch.bfloat16?",
    f"{_NORM}, Domain(dtypes=F16)": "Domain: dtypes is torch.float16 alone; write (torch.float16,)",
    f"{_NORM}, Domain(dtypes=(16,))": "dtypes has 16; write dtypes, as",
    "ATTENTION_FORWARD, Domain(dtypes=(F16,), sizes={'s_k': (1, 64)})": (
        "its domain names s_k, and attention_forward has no such size; did you mean s_kv?"
    ),
    "ATTENTION_FORWARD, Domain(dtypes=(F16,)), numerics=LayerNormNumerics()": (
        "numerics is LayerNormNumerics(...), of another op; write Numerics(...)"
    ),
    f"{_NORM}, Domain(dtypes=(F16, F16))": "Domain: dtypes has torch.float16 twice; write it once",
    **{
        f"{_NORM}, Domain(dtypes=(F16,), {fields})": sentence
        for fields, sentence in _WRONG_DOMAINS.items()
    },
    **{
        f"{_NORM}, Domain(dtypes=(F16,)), {others}": sentence
        for others, sentence in _WRONG_KERNELS.items()
    },
}


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    all_kernels()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_code_is_shared_with_a_kernel_of_the_op_that_has_its_own() -> None:
    """Checks that the one kernel skips are run on the other."""
    known = {(each.op.name, each.name): each for each in all_kernels()}
    sharing = [each for each in known.values() if each.same_code_as is not None]
    assert len(sharing) >= 6
    for each in sharing:
        other = known[each.op.name, str(each.same_code_as)]
        assert (other.origin, other.same_code_as) == ("ours", None)


@pytest.mark.parametrize("arguments", _WRONG)
def test_registration_that_cant_be_meant_is_one_sentence(arguments: str, tmp_path: Path) -> None:
    """It names the file and the line, says what was given, and what to write in its place."""
    file = tmp_path / "mine.py"
    file.write_text(_FILE.format(arguments=arguments))
    with pytest.raises(KernelError) as caught:
        load_file(file)
    text = str(caught.value)
    assert text.startswith(f"--kernels {file}: ")
    assert _WRONG[arguments] in text
    assert text.count("\n") == 0
    assert f"(line {_LINE})" in text
    assert not any(each.origin == "user" for each in all_kernels())


def test_registration_takes_lists_and_sets_where_they_say_the_same(tmp_path: Path) -> None:
    """A value with one meaning is accepted: a tuple of features, a list of dtypes or of limits."""
    file = tmp_path / "mine.py"
    domain = "Domain(dtypes=[F16], features=['no_bias'], sizes={'n': [1, None]}, sm=[80, 90])"
    file.write_text(_FILE.format(arguments=f"{_NORM}, {domain}"))
    (made,) = load_file(file)
    assert made.domain.features == frozenset({"no_bias"})
    served = [case for case in made.op.cases() if made.domain.reject(case, 90) is None]
    assert {frozenset({"no_bias"}), frozenset()} == {case.options for case in served}
