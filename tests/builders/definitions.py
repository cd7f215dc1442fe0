"""Definitions and workloads in flashinfer's trace format, of few columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Definition = dict[str, Any]


def definition(
    name: str,
    axes: Mapping[str, int | str | None],
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    reference: str,
    **others: Any,  # noqa: ANN401  # whatever JSON holds
) -> Definition:
    """Return a definition in JSON's types.

    An axis is var (None), const (a number) or expr (a text). A tensor is "dtype axis axis", a
    scalar "dtype" alone; "? dtype axis" is optional.
    """
    kinds = {
        name: {"type": "var"}
        if each is None
        else {"type": "const", "value": each}
        if isinstance(each, int)
        else {"type": "expr", "expression": each}
        for name, each in axes.items()
    }

    def tensors(of: Mapping[str, str]) -> dict[str, Any]:
        words = {name: each.removeprefix("? ").split() for name, each in of.items()}
        return {
            name: {"dtype": dtype, "shape": shape or None, "optional": of[name].startswith("?")}
            for name, (dtype, *shape) in words.items()
        }

    told = {"name": name, "op_type": "op", "axes": kinds, "reference": reference}
    return told | {"inputs": tensors(inputs), "outputs": tensors(outputs)} | others


def workload(name: str, axes: Mapping[str, int], **inputs: float | str | None) -> dict[str, Any]:
    """Return a line; an input that is None is random, and a text names a safetensors file."""

    def told(each: str, value: float | str | None) -> dict[str, Any]:
        if isinstance(value, str):
            return {"type": "safetensors", "path": value, "tensor_key": each}
        return {"type": "random"} if value is None else {"type": "scalar", "value": value}

    made = {each: told(each, value) for each, value in inputs.items()}
    line = {"uuid": "one", "axes": dict(axes), "inputs": made}
    return {"definition": name, "solution": None, "workload": line, "evaluation": None}


def written(folder: Path, of: Definition, lines: Iterable[object] = ()) -> tuple[Path, list[Path]]:
    """Write a definition and its workloads, and return their files."""
    file, workloads = folder / "definition.json", folder / "workloads.jsonl"
    file.write_text(json.dumps(of))
    workloads.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return file, [workloads] if workloads.stat().st_size else []


RMS_NORM = definition(
    "rmsnorm_h64",
    {"batch_size": None, "hidden_size": 64},
    {"hidden_states": "bfloat16 batch_size hidden_size", "weight": "bfloat16 hidden_size"},
    {"output": "bfloat16 batch_size hidden_size"},
    """
import torch

@torch.no_grad()
def run(hidden_states, weight):
    assert hidden_states.shape[1] == 64
    x = hidden_states.to(torch.float32)
    scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)
    return (x * scale * weight.to(torch.float32)).to(hidden_states.dtype)
""",
)
ADD_RMS_NORM = definition(
    "fused_add_rmsnorm_h64",
    {"m": None, "n": 64},
    {"x": "bfloat16 m n", "residual": "bfloat16 m n", "weight": "float32 n", "eps": "float32"},
    {"output": "bfloat16 m n", "total": "bfloat16 m n"},
    """
import torch

def run(x, residual, weight, eps):
    total = x.float() + residual.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return (total * scale * weight).to(x.dtype), total.to(torch.bfloat16)
""",
)
PRODUCT = definition(
    "gemm_n48_k32",
    {"M": None, "N": 48, "K": 32},
    {"A": "float16 M K", "B": "float16 N K"},
    {"C": "float16 M N"},
    "import torch\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
)
SOFTMAX = definition(
    "softmax_v120",
    {"rows": None, "vocabulary": 120},
    {"logits": "float32 rows vocabulary", "temperature": "float32"},
    {"probs": "float32 rows vocabulary"},
    """
import torch

def run(logits, temperature=0.5):
    return torch.softmax(logits / temperature, dim=-1)
""",
)
SILU_AND_MUL = definition(
    "silu_and_mul",
    {"m": None, "n": None, "both": "2 * n"},
    {"x": "float16 m both"},
    {"out": "float16 m n"},
    """
import torch

def run(x):
    gate, up = x.float().chunk(2, dim=-1)
    return {"out": (gate * torch.sigmoid(gate) * up).to(x.dtype)}
""",
)
ROPE = definition(
    "rope_d32",
    {"tokens": None, "heads": None, "d": 32, "half": 16},
    {"q": "bfloat16 tokens heads d", "cos": "float32 tokens half", "sin": "float32 tokens half"},
    {"q_out": "bfloat16 tokens heads d"},
    """
import torch

def run(q, cos, sin):
    x, c, s = q.to(torch.float32), cos.unsqueeze(1), sin.unsqueeze(1)
    out = torch.empty_like(x)
    out[..., :16] = x[..., :16] * c - x[..., 16:] * s
    out[..., 16:] = x[..., 16:] * c + x[..., :16] * s
    return out.to(q.dtype)
""",
)
ATTENTION = definition(
    "gqa_decode_d16",
    {"b": None, "h_q": None, "h_kv": None, "s": None, "group": 2, "d": 16},
    {"q": "bfloat16 b h_q d", "k": "bfloat16 b s h_kv d", "v": "bfloat16 b s h_kv d"}
    | {"sm_scale": "float32"},
    {"output": "bfloat16 b h_q d", "lse": "float32 b h_q"},
    """
import math
import torch

@torch.no_grad()
def run(q, k, v, sm_scale):
    keys, values = (each.float().repeat_interleave(2, dim=2) for each in (k, v))
    output = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    lse = torch.full(q.shape[:2], -float("inf"), dtype=torch.float32, device=q.device)
    for b in range(q.shape[0]):
        logits = torch.einsum("hd,shd->hs", q[b].float(), keys[b]) * sm_scale
        lse[b] = torch.logsumexp(logits, dim=-1) / math.log(2.0)
        output[b] = torch.einsum("hs,shd->hd", torch.softmax(logits, dim=-1), values[b])
    return output.to(torch.bfloat16), lse
""",
    constraints=["h_q == h_kv * group"],
)
LABELLED = definition(
    "labelled_loss",
    {"m": None, "n": None},
    {"logits": "float16 m n", "target": "int64 m"},
    {"loss": "float32 m"},
    """
import torch

def run(logits, target):
    x = logits.to(torch.float32)
    return torch.logsumexp(x, dim=-1) - x.gather(1, target[:, None]).squeeze(1)
""",
)
MASKED = definition(
    "masked_sum",
    {"m": None, "n": 24},
    {"x": "float16 m n", "keep": "bool m n"},
    {"y": "float32 m"},
    "import torch\n\ndef run(x, keep):\n    return torch.where(keep, x.float(), 0.0).sum(-1)\n",
)
PAGED = definition(
    "gqa_paged_decode_d16",
    {"batch": None, "heads": 4, "kv_heads": 2, "d": 16, "pages": None, "page_size": 1}
    | {"len_indptr": None, "num_indices": None},
    {
        "q": "bfloat16 batch heads d",
        "k_cache": "bfloat16 pages page_size kv_heads d",
        "v_cache": "bfloat16 pages page_size kv_heads d",
        "kv_indptr": "int32 len_indptr",
        "kv_indices": "int32 num_indices",
        "sm_scale": "float32",
    },
    {"output": "bfloat16 batch heads d", "lse": "float32 batch heads"},
    """
import torch

@torch.no_grad()
def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    batch, heads, d = q.shape
    assert kv_indices.shape[0] == kv_indptr[-1].item()
    keys, values = k_cache.squeeze(1).to(torch.float32), v_cache.squeeze(1).to(torch.float32)
    output = torch.zeros((batch, heads, d), dtype=torch.bfloat16, device=q.device)
    lse = torch.full((batch, heads), -float("inf"), dtype=torch.float32, device=q.device)
    for b in range(batch):
        first, last = int(kv_indptr[b].item()), int(kv_indptr[b + 1].item())
        if first >= last:
            output[b].zero_()
            continue
        places = kv_indices[first:last].to(torch.long)
        k = keys[places].repeat_interleave(2, dim=1)
        v = values[places].repeat_interleave(2, dim=1)
        logits = torch.einsum("hd,shd->hs", q[b].to(torch.float32), k) * sm_scale
        lse[b] = torch.logsumexp(logits, dim=-1)
        weights = torch.softmax(logits, dim=-1)
        output[b] = torch.einsum("hs,shd->hd", weights, v).to(torch.bfloat16)
    return output, lse
""",
    constraints=["len_indptr == batch + 1", "num_indices == kv_indptr[-1].item()"],
)
# As in flashinfer: no function run, another name for an input, and an optional input.
SCALED = definition(
    "gemm_fp8_n24_k32",
    {"M": None, "N": 24, "K": 32},
    {"A": "float8_e4m3fn M K", "B": "float8_e4m3fn N K", "scale": "float32 M"}
    | {"bias": "? float32 N"},
    {"C": "bfloat16 M N"},
    """
import torch

def _scaled(a, scale):
    return a.to(torch.float32) * scale[:, None]

@torch.no_grad()
def _gemm_reference(a, B, scale, bias=None, **_unused):
    made = _scaled(a, scale) @ B.to(torch.float32).T
    return (made if bias is None else made + bias).to(torch.bfloat16)
""",
    constraints=["B.shape[-1] == K"],
)
PACKED_CONVOLUTION = definition(
    "packed_conv_n24",
    {"total": None, "len_indptr": None, "n": 24, "w": 4},
    {"x": "bfloat16 total n", "weight": "bfloat16 w n", "indptr": "int32 len_indptr"},
    {"y": "bfloat16 total n"},
    """
import torch

def run(x, weight, indptr):
    ends = indptr.tolist()
    parts = [x[:0]]
    for a, b in zip(ends, ends[1:]):
        rows = torch.cat((x.new_zeros(3, x.shape[1]), x[a:b]))
        parts.append(sum(rows[i : i + b - a] * weight[i] for i in range(4)))
    return torch.cat(parts)
""",
    constraints=["total == indptr[-1].item()"],
)
