"""The cheats of tests/candidates/cheats/, a user's file each, and how they must fail.

None is imported here: only workers of the accuracy suite run them.

The numbers are those of the ways to deceive a harness that were seen in the wild:

     1 returns the memory in which the reference's result still lies
     2 writes nothing, where the outputs of an earlier call lie
     3 changes its inputs so that the reference agrees
     4 works on another stream, or in a thread, so that the clock stops early
     5 returns what computes when it is looked at
     6 replaces the timer, the comparison or the statistics
     7 caches by identity, address, shape or content, and replays
     8 tells warm-up from measurement, or the check from the timing
     9 guesses the seed, or the case
    10 looks for the expected tensor among what the process holds
    11 leaves its inputs in a cache
    12 computes a part
    13 computes in less precision than it declares
    14 calls the library that it is compared with, or falls back to it
    15 rewrites the record

The bench, not this suite, finds cheats that are about time alone: 11, a stream that the clock
doesn't see (4), replaying what has the same content (7) and another kernel for the check than for
the timing (8), all of which leave right outputs behind. Cheats without a number are ways to
get past the suite by ending, hanging or misleading the processes that it consists of.
"""

from __future__ import annotations

from pathlib import Path

from kernel_workbench.oracles import (
    ATTENTION_FORWARD,
    CROSS_ENTROPY_FORWARD,
    LAYER_NORM_BACKWARD,
    LAYER_NORM_FORWARD,
    MATMUL_FORWARD,
    SOFTMAX_FORWARD,
)
from kernel_workbench.oracles.op import Op
from kernel_workbench.reports.record import Rule
from tests.mutants.mutant import ACCESS, ERROR, NAN, Mutant
from tests.mutants.named_cases import DENSE, bf16, fp32

_FOLDER = Path(__file__).resolve().parent.parent / "candidates" / "cheats"
_ONE = ("m37-n760-float32-contiguous",)
_THREE = ("m37-n64-float32-contiguous", "m3-n229-float32-contiguous", *_ONE)
_SOFTMAXES = ("m12-n264-float32-contiguous-times3",)
_LOSSES = (
    "m12-n264-float32-contiguous-scaled_rows",
    "m12-n264-float32-contiguous-negative_zero",
)
_PRODUCTS = ("m64-n64-k64-float32-contiguous-times3",)
_NORMS = ("m12-n264-float16-contiguous",)
_STATE: tuple[Rule, ...] = ("changed process state",)
_CODE: tuple[Rule, ...] = ("replaced code",)
_UNREPEATED: tuple[Rule, ...] = ("not repeatable", *ERROR)


def _cheat(
    name: str,
    numbers: tuple[int, ...],
    rules: tuple[Rule, ...],
    cases: tuple[str, ...] = _ONE,
    op: Op = LAYER_NORM_BACKWARD,
    *,
    alone: bool = False,
    sound: str = "",
) -> Mutant:
    file = _FOLDER / f"{name}.py"
    said = file.read_text().partition("\n")[0].strip('."')
    return Mutant(
        name=f"cheat_{name}",
        bugs=(),
        cheats=numbers,
        op=op.name,
        kernel=name,
        cases=cases,
        rules=rules,
        why="it " + said[:1].lower() + said[1:],
        file=file,
        sound=sound or ("plain_ln_sound" if op is LAYER_NORM_BACKWARD else "plain_sound"),
        alone=alone,
    )


MUTANTS = (
    _cheat("stale_memory", (1,), ("unwritten output",)),
    _cheat("outputs_from_before", (2, 7), _UNREPEATED),
    _cheat("changes_inputs", (3,), ("changed input",)),
    _cheat("writes_into_dy", (3,), ("changed input",)),
    _cheat("writes_past_the_end", (), ("wrote out of bounds",)),
    _cheat("thread_writes_later", (4,), ("left running",)),
    _cheat("raw_thread_writes_later", (4,), ("left running", *ERROR)),
    _cheat("wrong_when_compiled", (13,), ERROR),
    _cheat("lazy_subclass", (5,), ("wrong outputs",)),
    _cheat("lazy_negation", (5,), ("wrong outputs",)),
    _cheat("pads_its_outputs", (5,), ("wrong outputs",)),
    _cheat("replaces_the_judge", (6,), _CODE),
    _cheat("cached_by_shape", (7,), _UNREPEATED),
    _cheat("cached_by_address", (7,), _UNREPEATED),
    _cheat("cached_by_magnitude", (7,), _UNREPEATED),
    _cheat("first_call_alone", (8,), _UNREPEATED),
    _cheat("warm_up_alone", (8,), _UNREPEATED, _THREE),
    _cheat(
        "contiguous_alone",
        (),
        (*NAN, *ERROR, *ACCESS),
        ("m37-n64-float32-contiguous", "m11-n264-float32-rowpad8", "m11-n264-float32-rowpad1"),
    ),
    _cheat(
        "small_offsets_alone", (), ACCESS, (bf16("m37-n64-{}-contiguous"), "m3-n264-bfloat16-x_far")
    ),
    _cheat("knows_the_case", (9,), ERROR, ("m1-n768-float32-contiguous", *_ONE)),
    _cheat("looks_through_gc", (10,), (*ERROR, *NAN, "wrong outputs")),
    _cheat("computes_part", (12,), ERROR),
    _cheat("drops_precision", (13,), ERROR),
    _cheat("decoy_launch", (14,), ("stubbed",)),
    _cheat("decoy_launch_in_gluon", (14,), ("stubbed",)),
    _cheat("falls_back", (14,), ("stubbed",)),
    _cheat("falls_back_to_the_library", (14,), ("library call",)),
    _cheat("calls_the_library", (14,), ("library call",)),
    _cheat("calls_autograd", (14,), ("library call",)),
    _cheat("calls_the_oracle", (9, 14), ("library call", "raised")),
    _cheat("disarms_the_watch", (6, 14), _CODE),
    _cheat("rewrites_the_record", (15,), ERROR),
    _cheat("rewrites_at_exit", (15,), ERROR),
    _cheat("rewrites_from_outside", (15,), ERROR),
    _cheat("exits_at_once", (), ("process ended",)),
    _cheat("exits_politely", (), ("raised",)),
    _cheat("crashes", (), ("process ended",)),
    _cheat("hangs", (), ("time limit",)),
    _cheat("kills_its_parent", (), ("process ended",), alone=True),
    _cheat("forges_the_reply", (6,), ("process ended", *ERROR)),
    _cheat("sends_garbage", (6,), ("process ended",)),
    _cheat("library_in_a_thread", (14,), ("library call",)),
    _cheat("library_outside_the_modes", (14,), ("library call",)),
    _cheat("library_in_a_process", (14,), ("library call",)),
    _cheat("sets_default_dtype", (), _STATE),
    _cheat("sets_default_dtype_later", (), _STATE),
    _cheat("sets_grad_mode", (), _STATE),
    _cheat("sets_deterministic_algorithms", (), _STATE),
    _cheat("sets_seed", (), _STATE),
    _cheat("sets_matmul_precision", (), _STATE),
    _cheat("sets_environment", (), _STATE),
    _cheat("sets_signal_handler", (), _STATE),
    _cheat("replaces_the_checks", (6,), _CODE),
    _cheat("replaces_the_checks_at_import", (6,), _CODE),
    _cheat("replaces_a_method", (6,), _CODE),
    _cheat("replaces_the_code", (6,), _CODE),
    _cheat("replaces_the_interpreter", (6,), _CODE),
    _cheat("replaces_clone", (6,), _CODE),
    _cheat("edits_a_table", (6,), _CODE),
    _cheat("interrupts", (), ("raised", "process ended")),
    _cheat("skips_itself", (), ("raised",)),
    _cheat("paints_the_report", (), ("raised",)),
    _cheat("stops_itself", (), ("time limit",)),
    _cheat("stops_its_parent", (), ("time limit",), alone=True),
    _cheat("canary_launch", (14,), ("stubbed",)),
    _cheat("cached_with_signs", (7,), ERROR),
    _cheat("first_seed_alone", (9,), ERROR),
    _cheat("honest_where_judged", (8,), ERROR),
    _cheat("honest_under_pytest", (8,), ERROR),
    *(
        _cheat(name, (14,), ("stubbed",), cases, op, sound="rows")
        for name, op, cases in (
            ("copies_a_softmax", SOFTMAX_FORWARD, _SOFTMAXES),
            ("copies_a_softmax_in_parts", SOFTMAX_FORWARD, _SOFTMAXES),
            ("copies_a_cross_entropy", CROSS_ENTROPY_FORWARD, _LOSSES),
            ("copies_a_product", MATMUL_FORWARD, _PRODUCTS),
            ("copies_a_norm", LAYER_NORM_FORWARD, _NORMS),
        )
    ),
    _cheat("batch_norm_of_rows", (14,), ("library call",)),
    _cheat("group_norm_of_one", (14,), ("library call",)),
    _cheat("flex_outside_the_modes", (14,), ("library call",), (fp32(DENSE),), ATTENTION_FORWARD),
    _cheat("library_by_its_symbol", (14,), ("library call",), (fp32(DENSE),), ATTENTION_FORWARD),
    _cheat("library_by_its_kernel", (14,), ("library call",)),
    _cheat("poses_as_a_baseline", (), _CODE),
    _cheat("bombs_the_unpickler", (), ("wrong outputs",)),
    _cheat("attention_by_the_library", (14,), ("library call",), (fp32(DENSE),), ATTENTION_FORWARD),
    _cheat(
        "library_in_a_thread_or_else", (14,), ("library call",), (fp32(DENSE),), ATTENTION_FORWARD
    ),
    _cheat("attention_of_the_diagonal", (12,), ERROR, (fp32(DENSE),), ATTENTION_FORWARD),
)
