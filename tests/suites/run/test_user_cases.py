"""`--cases FILE`: what a line may say, how it is refused, and that what is taken can be run."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import latest, read
from kernel_workbench.suites.run.user_cases import CasesError, read_cases
from tests.builders.commands import ACCURACY, run_python

_ENOUGH = 2**37
_NORM: dict[str, object] = {
    "op": "layer_norm_backward",
    "sizes": {"m": 7, "n": 264},
    "dtype": "bfloat16",
}
_SIZES = {"b": 1, "h_q": 2, "h_kv": 2, "s_q": 33, "s_kv": 40, "d": 64, "d_v": 64}
_FORWARD: dict[str, object] = {"op": "attention_forward", "sizes": _SIZES, "dtype": "float16"}
_DELTA: dict[str, object] = {
    "op": "attention_delta",
    "sizes": {"b": 1, "h_q": 2, "s_q": 33, "d_v": 64},
    "dtype": "float32",
}
# The distributions that are made for the op's own cases.
_OWN = {"needles", "integers", "coarse"}


def _read(tmp_path: Path, *lines: object, most: int = _ENOUGH) -> tuple[Case, ...]:
    file = tmp_path / "mine.jsonl"
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    file.write_text("\n".join(texts))
    return read_cases([file], most)


def _sized(line: dict[str, object], **sizes: int) -> dict[str, object]:
    assert isinstance(line["sizes"], dict)
    return line | {"sizes": line["sizes"] | sizes}


def _with(*options: str, **more: object) -> dict[str, object]:
    return _FORWARD | {"options": options} | more


def test_line_becomes_the_case_that_it_says(tmp_path: Path) -> None:
    """Sizes in the op's order, options that follow from sizes, and the weight, which ids lack."""
    line = _sized(_FORWARD, h_q=4, window_left=5) | {
        "options": ["causal"],
        "weight": 2.5,
        "seed": 3,
    }
    norm = _NORM | {"sizes": {"n": 264, "m": 7}, "weight_dtype": "float32", "layout": "offset1"}
    first, second = _read(tmp_path, line, "", norm)
    assert first.id() == (
        "attention_forward-b1-h_q4-h_kv2-s_q33-s_kv40-d64-d_v64-window_left5-float16-contiguous-"
        "causal-gqa-window-seed3"
    )
    assert second.id() == "layer_norm_backward-m7-n264-bfloat16_float32weight-offset1"
    assert (first.weight, second.weight) == (2.5, None)
    assert second.why == "a user's: line 3 of mine.jsonl"


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_files_of_other_editors_are_read(tmp_path: Path, mark: bytes, end: bytes) -> None:
    """A byte order mark at the start, carriage returns, and no newline at the end."""
    file = tmp_path / "mine.jsonl"
    file.write_bytes(mark + json.dumps(_NORM).encode() + end)
    assert len(read_cases([file], _ENOUGH)) == 1


# A line, and what is said of it after `FILE, line 1: `.
_WRONG: dict[str, tuple[object, str]] = {
    "no JSON": ("{op: 3}", "not JSON at column 2 (Expecting property name"),
    "no object": ("[1, 2]", "the line: input should be an object, got [1, 2]"),
    "cut": ('{"op": "atten', "not JSON at column 8 (Unterminated string"),
    "a key twice": ('{"op": "a", "op": "b"}', 'the key "op" occurs twice; leave one of them out'),
    "deep": ("[" * 60_000, "not JSON that can be read (maximum recursion depth exceeded"),
    "many digits": ('{"seed": ' + "9" * 5000 + "}", "not JSON that can be read (Exceeds the limit"),
    "long": (" " * 70_000 + "{}", "the line has 70,002 bytes, and a case has a few hundred;"),
    "nothing": ({}, "op is missing; every case has op, sizes and dtype (and 2 more mistakes)"),
    "unknown key": (_NORM | {"size": 1}, 'there is no key "size"; did you mean sizes?'),
    "op": (
        _NORM | {"op": "layernorm_backward"},
        'there is no op "layernorm_backward"; did you mean layer_norm_b',
    ),
    "no op like it": (
        _NORM | {"op": "fft"},
        'there is no op "fft"; there are add_rms_norm_backward',
    ),
    "escapes": (
        _NORM | {"op": "\x1b[31m<script>"},
        r'there is no op "\u001b[31m<script>"; there are ',
    ),
    "dtype": (_NORM | {"dtype": "bf16"}, 'there is no dtype "bf16" here; did you mean bfloat16?'),
    "weight dtype": (
        _NORM | {"weight_dtype": "float64"},
        'there is no dtype "float64" here; did you mean float16?',
    ),
    "no weight": (_DELTA | {"weight_dtype": "float16"}, "attention_delta has no weight; leave"),
    "size": (_sized(_NORM, k=3), 'layer_norm_backward has no size "k"; there are m, n'),
    "missing sizes": (
        _FORWARD | {"sizes": {"b": 1, "d": 64}},
        "the sizes lack h_q, h_kv, s_q, s_kv, d_v; attention_forward needs each of them",
    ),
    "negative size": (_sized(_NORM, m=-1), "m is -1; give a whole number from 0 to 2,147,483,647"),
    "size of text": (
        _NORM | {"sizes": {"m": "7", "n": 1}},
        'sizes.m: input should be a valid integer, got "7"',
    ),
    "size of a fraction": (_sized(_NORM) | {"sizes": {"m": 1.5}}, "sizes.m: input should be a val"),
    "size of a truth value": (_NORM | {"sizes": {"m": True}}, "sizes.m: input should be a valid"),
    "no columns": (_sized(_NORM, n=0), "n must be 1 or more"),
    "too large": (
        _sized(_NORM, m=2**31 - 1, n=65536),
        "its tensors and their truth in float64 take about 7,864,480 GiB, and the memory is 128",
    ),
    "option": (
        _NORM | {"options": ["rmsnorm"]},
        'layer_norm_backward has no option "rmsnorm"; did',
    ),
    "no options": (_DELTA | {"options": ["causal"]}, 'has no option "causal"; it has none'),
    "option twice": (_with("causal", "causal"), "the option causal occurs twice; leave one"),
    "nothing to act on": (
        _NORM | {"options": ["no_weight", "accumulate"]},
        "no_weight leaves accumulate nothing to act on; leave one side out",
    ),
    "heads": (_sized(_FORWARD, h_q=6, h_kv=4), "h_q 6 is no multiple of h_kv 4; each key head"),
    "no heads": (_sized(_FORWARD, h_kv=0), "h_kv must be 1 or more"),
    "longest": (_sized(_FORWARD, s_q=2**24 + 1), "s_q is 16,777,217, and the longest here is"),
    "sequences": (
        _sized(_with("varlen"), b=2**20),
        "b is 1,048,576 sequences, and varlen has 65,536 at most here",
    ),
    "window": (_with("window"), "window needs window_left, window_right or both among the sizes"),
    "gqa": (_with("gqa"), "gqa means that h_q and h_kv differ, and both are 2; leave it out"),
    "unequal_d": (_with("unequal_d"), "unequal_d means that d and d_v differ, and both are 64"),
    "bias and varlen": (_with("bias", "varlen"), "bias and varlen don't go together: no case has"),
    "bias over heads": (_with("bias_over_heads"), "bias_over_heads is about a bias, and there is"),
    "dropouts": (_with("dropout", "torch_dropout"), "dropout and torch_dropout are two masks of"),
    "corner": (_with("bottom_right"), "bottom_right moves a mask or a distance; add causal, a"),
    "layout": (_NORM | {"layout": "offset11"}, 'has no layout "offset11"; did you mean offset1?'),
    "layout of a bias": (_with(layout="bias_rowpad1"), "layout bias_rowpad1 places bias, and the"),
    "layout of a mean": (
        _NORM | {"layout": "mean_offset1", "options": ["rms_norm"]},
        "layout mean_offset1 places mean, and the case has none",
    ),
    "rank 3": (_NORM | {"layout": "rank3"}, "layout rank3 splits the rows in 3, and m is 7"),
    "far": (
        _sized(_NORM, m=100) | {"layout": "x_far"},
        "its tensors and their truth in float64 take about 198 GiB, and the memory is 128 GiB",
    ),
    "distribution": (
        _NORM | {"distribution": "norml"},
        'has no distribution "norml"; did you mean',
    ),
    "probe": (_with(distribution="needles"), "distribution needles is for the op's own cases,"),
    "relations": (_NORM | {"distribution": "coarse"}, "distribution coarse is for the op's own"),
    "overflow": (_NORM | {"distribution": "near_overflow"}, "near_overflow is about float16's"),
    "sink": (
        _with(distribution="sink_large"),
        "distribution sink_large is about a sink, and there",
    ),
    "weight 0": (_NORM | {"weight": 0}, "weight: input should be greater than 0, got 0"),
    "weight NaN": ('{"op": "a", "sizes": {}, "dtype": "b", "weight": NaN}', "weight: input should"),
    "weight of text": (_NORM | {"weight": "often"}, "weight: input should be a valid number, got"),
    "endless weight": (
        '{"op": "a", "sizes": {}, "dtype": "b", "weight": 1e999}',
        "weight: input should be less than",
    ),
    "seed": (_NORM | {"seed": -1}, "seed: input should be greater than or equal to 0, got -1"),
}


@pytest.mark.parametrize("name", _WRONG)
def test_wrong_line_is_told_of_with_its_place(tmp_path: Path, name: str) -> None:
    """One sentence: the file, the line, what is wrong and what to do; no control character."""
    line, said = _WRONG[name]
    with pytest.raises(CasesError) as raised:
        _read(tmp_path, line)
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'mine.jsonl'}, line 1: ")
    assert said in message
    assert message.isprintable()
    assert len(message) < 700


def test_bytes_that_are_not_utf8_are_told_of(tmp_path: Path) -> None:
    """With the byte's place in its line."""
    file = tmp_path / "mine.jsonl"
    file.write_bytes(json.dumps(_NORM).encode() + b'\n{"op": "\xff"}\n')
    with pytest.raises(CasesError, match=r"line 2: not UTF-8 at byte 8 of the line; save the"):
        read_cases([file], _ENOUGH)


def test_every_wrong_line_is_told_of_up_to_ten(tmp_path: Path) -> None:
    """So that a file is mended in one go; the right lines between them don't count."""
    with pytest.raises(CasesError) as raised:
        _read(tmp_path, *[_NORM, "{"] * 12)
    told = str(raised.value).splitlines()
    assert len(told) == 11
    assert [each.partition(", line ")[2].partition(":")[0] for each in told[:3]] == ["2", "3", "4"]
    assert told[-1] == "and 13 more lines"


def test_case_that_comes_twice_is_told_of(tmp_path: Path) -> None:
    """Also over two files: its two weights would be ambiguous."""
    _read(tmp_path, _NORM)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(_NORM | {"weight": 2}))
    with pytest.raises(
        CasesError, match=r"other.jsonl, line 1: the same case as .*mine.jsonl, lin"
    ):
        read_cases([tmp_path / "mine.jsonl", other], _ENOUGH)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.jsonl", "there is no such file; give a file of JSON lines"),
        (".", "it is no file; give a file of JSON lines"),
        ("empty.jsonl", "the file has no case; write one JSON object a line"),
        ("a\0b", r"/a\x00b: "),
        ("n" * 300, "it can't be read (File name too long)"),
        ("/dev/zero", "it is no file; give a file of JSON lines"),
    ],
)
def test_file_that_cannot_be_read_is_told_of(tmp_path: Path, name: str, said: str) -> None:
    """Missing, a folder, a device, empty, or no name at all: one sentence."""
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(CasesError) as raised:
        read_cases([tmp_path / name], _ENOUGH)
    assert said in str(raised.value)


@pytest.mark.parametrize("op", OPS)
def test_own_cases_of_an_op_are_allowed(op: str) -> None:
    """The limits for a user's cases are no stricter than the op's own cases, probes aside."""
    allowed = OPS[op].allowed
    assert allowed is not None
    refused = [
        (case.id(), allowed.objection(case))
        for case in OPS[op].cases()
        if case.distribution not in _OWN and allowed.objection(case) is not None
    ]
    assert refused == []
    for case in OPS[op].cases():
        known = dict(case.sizes)
        assert tuple(known) == tuple(
            name for name in (*allowed.sizes, *allowed.option_sizes) if name in known
        )
        assert allowed.implied(known) <= case.options


def _drawn(op: str, draw: random.Random) -> dict[str, object]:
    """A line of small sizes whose options, layout and distribution are drawn."""
    known = OPS[op]
    assert known.allowed is not None
    sizes = {name: draw.choice((0, 1, 2, 3, 4, 8, 17)) for name in known.allowed.sizes}
    sizes |= {
        name: draw.choice((0, 3)) for name in known.allowed.option_sizes if draw.random() < 0.2
    }
    others = sorted(set(known.options) - {"gqa", "unequal_d", "window", "torch_dropout"})
    options = draw.sample(others, min(len(others), draw.choice((0, 1, 2, 3))))
    cases = draw.choices(known.cases(), k=2)
    line: dict[str, object] = {"op": op, "sizes": sizes, "options": options}
    line["dtype"] = draw.choice(("float32", "float16", "bfloat16"))
    line["layout"] = cases[0].layout.name if "far" not in cases[0].layout.name else "contiguous"
    line["distribution"] = cases[1].distribution
    if "weight" in known.arguments and draw.random() < 0.3:
        line["weight_dtype"] = "float32"
    return line


@pytest.mark.parametrize("op", OPS)
def test_line_that_is_taken_has_inputs_and_a_truth(op: str, tmp_path: Path) -> None:
    """All accepted lines of 100 drawn ones can be made and computed."""
    draw, taken = random.Random(5), 0
    for _ in range(100):
        try:
            (case,) = _read(tmp_path, _drawn(op, draw))
        except CasesError:
            continue
        taken += 1
        inputs = OPS[op].inputs(case, torch.device("cpu"))
        truth = OPS[op].oracle(case, inputs)
        forms = OPS[op].forms(case)
        shapes = {name: tuple(each.shape) for name, each in truth.items() if each is not None}
        assert shapes == {name: form.shape for name, form in forms.items()}, case.id()
    assert taken > 5


def _run(results: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_python(*ACCURACY, "-p", "no:cacheprovider", f"--results={results}", *options)


def test_run_has_the_files_cases_alone(tmp_path: Path) -> None:
    """Three lines of three ops on two processes; a row's command finds its case again."""
    file = tmp_path / "mine.jsonl"
    lines = (_NORM, _sized(_FORWARD, d=16, d_v=16), _DELTA | {"weight": 4.0})
    file.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    kernels = ("--kernel=row_persistent", "--kernel=flash", "--kernel=delta")
    ran = _run(tmp_path / "all", f"--cases={file}", "--jobs=2", *kernels)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    record = read(latest(tmp_path / "all"))
    assert {row.case.op for row in record.rows} == {str(each["op"]) for each in lines}
    assert [row.status for row in record.rows] == ["passed"] * 3
    assert {row.case.id for row in record.rows} == {each.id() for each in read_cases([file], 2**37)}
    one = next(row for row in record.rows if row.case.op == "attention_delta")
    words = shlex.split(one.reproduce)
    assert f"--cases={file}" in words
    again = _run(tmp_path / "one", *words[words.index("accuracy") + 1 :])
    assert again.returncode == 0, again.stdout + again.stderr
    assert [row.case.id for row in read(latest(tmp_path / "one")).rows] == [one.case.id]


def test_run_with_wrong_lines_begins_nothing(tmp_path: Path) -> None:
    """The lines are told of on stderr, with pytest's status for a wrong command line."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"op": "fft"}\n{\n')
    ran = _run(tmp_path / "all", f"--cases={file}")
    assert ran.returncode == 4
    assert f"{file}, line 1: " in ran.stderr
    assert f"{file}, line 2: " in ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout
    assert not (tmp_path / "all").exists()
