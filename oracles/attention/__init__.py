"""Attention: ATTENTION_FORWARD, ATTENTION_DELTA, ATTENTION_BACKWARD, ATTENTION_GRADIENTS.

For each batch and query head (its key head is h // (h_q / h_kv)), over the keys j that query i
may attend to:

    S_ij  = softcap(scale q_i.k_j) + bias_ij - slope_h |i + shift - j|
    lse_i = log(sum_j exp S_ij [+ exp sink_h])          P_ij = exp(S_ij - lse_i)
    out_i = sum_j w_ij P_ij v_j                          w_ij = keep_ij / (1 - p), 1 without dropout

softcap(x) = c tanh(x / c). A row that attends to no key, because of the masks or because its every
bias is -inf, has out 0 and lse -inf (lse = sink where there is one); its gradients are zero. With
D_i = delta_i = sum_c do_ic out_ic:

    dS_ij = P_ij (w_ij do_i.v_j - D_i)                   dX_ij = dS_ij (1 - tanh^2(x / c))
    dq_i  = scale sum_j dX_ij k_j                        dk_j  = scale sum_i dX_ij q_i
    dv_j  = sum_i w_ij P_ij do_i                         dsink_h = -sum_i exp(sink_h - lse_i) D_i
    dbias = dS summed over what the bias was broadcast over

Layout (b, s, h, d) with free strides, so that a (b, h, s, d) tensor is a view of it:

    q [b, s_q, h_q, d]   k [b, s_kv, h_kv, d]   v [b, s_kv, h_kv, d_v]   out, do [b, s_q, h_q, d_v]
    lse, delta [b, h_q, s_q] in fp32            bias, dbias [b or 1, h_q or 1, s_q or 1, s_kv]
    sink, dsink, alibi_slopes [h_q] in fp32     everything else in the case's dtype

    ATTENTION_FORWARD    q, k, v -> out, lse
    ATTENTION_DELTA      out, do -> delta
    ATTENTION_BACKWARD   do, q, k, v, out, lse -> dq, dk, dv, dbias, dsink
    ATTENTION_GRADIENTS  do, q, k, v -> dq, dk, dv, dbias, dsink

A backward takes out and lse as given: its P is exp(S - lse), and D comes from the given out. The
gradients are a forward's and then its backward's. dbias and dsink are None where there is no bias,
no sink. An option is passed by keyword, only to kernels whose domain lists it, and only where the
case has it (`OPTIONS` has a sentence on each):

    causal=True                    key j <= i + shift
    window=(left, right)           i + shift - left <= j <= i + shift + right; None: no limit there
    corner="bottom_right"          shift = s_kv - s_q; without it, "top_left": shift = 0
    bias=Tensor                    its broadcast axes have size 1, and are options of their own
    alibi_slopes=Tensor            softcap=float c > 0            sink=Tensor
    dropout_p=float, dropout_seed=int    keep_ij: see `dropout.py`
    cu_seqlens_q=Tensor, cu_seqlens_k=Tensor, max_seqlen_q=int, max_seqlen_k=int
                                   int32 [n + 1]: n sequences one after the other in tensors of
                                   batch 1, q [1, total_q, h_q, d]; s_q and s_kv are each
                                   sequence's own. The case's b is n. lse, delta [1, h_q, total_q]
    scale=float                    1 / sqrt(d) without it

"gqa" (h_q != h_kv) and "unequal_d" (d_v != d) are options without a keyword: a kernel that doesn't
list them isn't given such cases. No case has both a bias and varlen. ATTENTION_DELTA has no option:
a packed batch is one long sequence to it.

Non-finite values: a NaN or an infinity in k or v at key j makes NaN of what the formulas say in
rows that attend to j. It must not reach another batch, another key head, another sequence; nor any
row at all where no query of its sequence may attend to j. Rows that don't attend to j while others
of their sequence and head do are promised nothing (a tile's product mixes them), and aren't judged.
So with a query, or do, and the keys' gradients: those of keys that it attends to become NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from kernel_workbench.oracles.attention.arguments import case_from
from kernel_workbench.oracles.attention.bounds_backward import bound_backward, bound_gradients
from kernel_workbench.oracles.attention.bounds_forward import bound_delta, bound_forward
from kernel_workbench.oracles.attention.cases import allowed, cases
from kernel_workbench.oracles.attention.closed_form import (
    OPTIONS,
    backward,
    delta,
    forward,
    gradients,
)
from kernel_workbench.oracles.attention.emulation import (
    emulate_backward,
    emulate_delta,
    emulate_forward,
    emulate_gradients,
)
from kernel_workbench.oracles.attention.geometry import (
    ARGUMENTS,
    BACKWARD,
    DELTA,
    FORWARD,
    GRADIENTS,
    flops,
    forms,
    geometry,
    least_bytes,
    sequences,
)
from kernel_workbench.oracles.attention.probes import probe_bound
from kernel_workbench.oracles.attention.relations import relations
from kernel_workbench.oracles.attention.signs import flips
from kernel_workbench.oracles.attention.values import inputs
from kernel_workbench.oracles.attention.workloads import WORKLOADS
from kernel_workbench.oracles.cases import with_coverings
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Op, Outputs, Workloads

CASTS = MappingProxyType(
    {
        "factors": "P and dP - D are cast before their product, not dS alone",
        "partials": "with grouped heads, each head's dk and dv are cast before their sum",
        "bias_gradient": "dS is cast before it is summed over what the bias was broadcast over",
    }
)


def _bound(
    general: Callable[[Case, Inputs, Outputs, Numerics], dict[str, Bound]],
    case: Case,
    inputs: Inputs,
    truth: Outputs,
    numerics: Numerics,
) -> dict[str, Bound]:
    """The bounds of a case: 0 of most outputs where it is an exact probe, else the general ones."""
    exact = probe_bound(case, inputs, truth, numerics)
    return general(case, inputs, truth, numerics) if exact is None else exact


def _op(
    name: str,
    outputs: tuple[str, ...],
    oracle: Callable[[Case, Inputs], Outputs],
    bound: Callable[[Case, Inputs, Outputs, Numerics], dict[str, Bound]],
    emulate: Callable[[Case, Inputs, Numerics], Outputs],
    options: Mapping[str, str] = OPTIONS,
) -> Op:
    result: Op = Op(
        name=name,
        arguments=ARGUMENTS[name],
        outputs=outputs,
        options=options,
        inputs=inputs,
        oracle=oracle,
        bound=partial(_bound, bound),
        forms=forms,
        geometry=geometry,
        flops=flops,
        bytes=least_bytes,
        cases=with_coverings(partial(cases, name), lambda: result),
        emulate=emulate,
        casts=CASTS,
        relations=relations,
        signs=flips,
        linear="v" if name == FORWARD else "do",
        allowed=allowed(name),
        products=lambda _: name != DELTA,
        whole_work=frozenset({"out"}),
        workloads=WORKLOADS.get(name, Workloads()),
        sequences=sequences,
        case_from=partial(case_from, name),
        widths=("d", "d_v"),
        statistics=frozenset({"lse", "sink"}),
        nonzero=frozenset({"lse"}),
        unaligned=frozenset({"bias"}),
        gpu_options=frozenset({"torch_dropout"}),
    )
    return result


_GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")
ATTENTION_FORWARD = _op(FORWARD, ("out", "lse"), forward, bound_forward, emulate_forward)
ATTENTION_DELTA = _op(DELTA, ("delta",), delta, bound_delta, emulate_delta, options={})
ATTENTION_BACKWARD = _op(BACKWARD, _GRADIENTS, backward, bound_backward, emulate_backward)
ATTENTION_GRADIENTS = _op(GRADIENTS, _GRADIENTS, gradients, bound_gradients, emulate_gradients)
