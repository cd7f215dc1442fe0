"""The call of an attention op in float64, piece by piece: operands, masks and scores.

A piece is some batches (or one sequence of a varlen call), some key heads with all of their query
heads, some queries, and the keys from the first to the last that any of them may attend to. The
query heads of a key head's group are stacked as rows, group * s_q of them: a product over rows
then sums over the group, and keys and values are never expanded. Shapes below are those of a
piece, [B, H, R, K]: batches, key heads, rows (group times queries), keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.dropout import keep_mask, torch_keep_mask
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import Case, Inputs, optional, required

# Elements of a piece's largest tensor: each float64 temporary is 8 MiB, or 64 MiB where launches
# cost. With 32 GiB of a card free it is 256 MiB: bounds then take 0.4 to 0.8 of the time, and up to
# 8 GiB.
_PIECE_ELEMENTS = {"cpu": 2**20, "cuda": 2**23}
_FREE_BYTES, _TIMES_LARGER = 2**35, 4


@dataclass(frozen=True, slots=True)
class Span:
    """Queries and keys that meet: those of all batches, or of one sequence of a varlen call.

    number    of the sequence, 0 where there are none: the first batch's, for dropout
    first_q, first_k    where they begin in memory
    """

    number: int
    batches: slice
    first_q: int
    s_q: int
    first_k: int
    s_kv: int


@dataclass(frozen=True)
class Problem:
    """One call of an op: its arguments, with the options made plain.

    left, right    key j is attended to where -left <= j - i - shift <= right; None: no limit
    """

    inputs: Inputs
    scale: float
    softcap: float | None
    left: int | None
    right: int | None
    bottom_right: bool
    dropout_p: float
    seed: int
    torch_mask: bool

    @classmethod
    def of(cls, case: Case, inputs: Inputs) -> Problem:
        """Return the call with these arguments; the case only says if dropout is torch's."""
        stated = {name: inputs[name] for name in Options._fields if name in inputs}
        options = Options.of(stated)
        left, right = options.window or (None, None)
        if options.causal:
            right = 0 if right is None else min(right, 0)
        default = required(inputs, "q").shape[3] ** -0.5
        return cls(
            inputs=inputs,
            scale=default if options.scale is None else options.scale,
            softcap=options.softcap,
            left=left,
            right=right,
            bottom_right=options.corner == "bottom_right",
            dropout_p=options.dropout_p,
            seed=options.dropout_seed,
            torch_mask="torch_dropout" in case.options,
        )

    @cached_property
    def q(self) -> Tensor:
        """The argument q [b, s_q, h_q, d]."""
        return required(self.inputs, "q")

    @cached_property
    def k(self) -> Tensor:
        """The argument k [b, s_kv, h_kv, d]."""
        return required(self.inputs, "k")

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.q.shape[2] // max(self.k.shape[2], 1)

    @property
    def results(self) -> int:
        """How many sums an error is bounded for, at most: S and dP, and what is made of them."""
        b, s_q, h_q, d = self.q.shape
        return 2 * b * h_q * s_q * (self.k.shape[1] + d)

    @property
    def keep_scale(self) -> float:
        """1 / (1 - p), by which dropout multiplies the weights that it keeps."""
        return 1 / (1 - self.dropout_p)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The blocks of queries and keys that meet: one, or one for each sequence."""
        lengths_q, lengths_k = (optional(self.inputs, f"cu_seqlens_{name}") for name in "qk")
        if lengths_q is None or lengths_k is None:
            b, s_q = self.q.shape[:2]
            return (Span(0, slice(0, b), 0, s_q, 0, self.k.shape[1]),)
        assert optional(self.inputs, "bias") is None, "a bias has no layout for sequences"
        q, k = lengths_q.tolist(), lengths_k.tolist()
        return tuple(
            Span(number, slice(0, 1), q[number], q_end - q[number], k[number], k_end - k[number])
            for number, (q_end, k_end) in enumerate(zip(q[1:], k[1:], strict=True))
        )

    @cached_property
    def torch_keep(self) -> Tensor:
        """The mask of torch's memory-efficient kernels, bool [b, h_q, s_q, s_kv]."""
        b, s_q, h_q, _ = self.q.shape
        shape = (b, h_q, s_q, self.k.shape[1])
        return torch_keep_mask(self.seed, self.dropout_p, shape, self.q.device)

    def pieces(self, *, whole: bool = False) -> Iterator[Piece]:
        """All pieces in which some query may attend to some key; or, whole, all with every key."""
        h_kv, group = self.k.shape[2], self.group
        most = self._most_elements()
        width = max(self.q.shape[3], required(self.inputs, "v").shape[3])
        for span in self.spans:
            # With few queries or keys, the rows of q, k and v have more elements than the scores.
            a_row = max(group, 1) * max(span.s_kv, width, 1)
            a_head = max(span.s_q * a_row, span.s_kv * width, 1)
            heads = min(max(most // a_head, 1), max(h_kv, 1))
            batches = max(most // (a_head * heads), 1)
            rows = span.s_q if a_head <= most else max(most // a_row, 1)
            for b in range(span.batches.start, span.batches.stop, batches):
                for h in range(0, h_kv, heads):
                    for i in range(0, span.s_q, max(rows, 1)):
                        end = min(i + rows, span.s_q)
                        piece = Piece(
                            self,
                            span,
                            slice(b, min(b + batches, span.batches.stop)),
                            slice(h, min(h + heads, h_kv)),
                            range(i, end),
                            range(span.s_kv) if whole else self.keys(span, i, end),
                        )
                        if whole or len(piece.keys):
                            yield piece

    def _most_elements(self) -> int:
        """Return the most elements of any tensor of a piece."""
        device, (b, s_q, h_q, _) = self.q.device, self.q.shape
        most = _PIECE_ELEMENTS.get(device.type, _PIECE_ELEMENTS["cpu"])
        if device.type == "cuda" and b * h_q * s_q * self.k.shape[1] > most:
            free, _ = torch.cuda.mem_get_info(device)
            return most * (_TIMES_LARGER if free >= _FREE_BYTES else 1)
        return most

    def shift(self, span: Span) -> int:
        """Return the number that is added to a query's index to compare it with a key's."""
        return span.s_kv - span.s_q if self.bottom_right else 0

    def keys(self, span: Span, start: int, stop: int) -> range:
        """The keys that any of the queries start to stop - 1 may attend to, and those between."""
        shift = self.shift(span)
        first = 0 if self.left is None else max(0, start + shift - self.left)
        last = span.s_kv - 1
        if self.right is not None:
            last = min(last, stop - 1 + shift + self.right)
        return range(first, max(first, last + 1))

    def keys_of_queries(self, span: Span) -> Tensor:
        """Return the number of keys that each query may attend to, [s_q]."""
        i = torch.arange(span.s_q, device=self.q.device) + self.shift(span)
        low = torch.zeros_like(i) if self.left is None else (i - self.left).clamp(min=0)
        high = torch.full_like(i, span.s_kv - 1)
        if self.right is not None:
            high = high.minimum(i + self.right)
        return (high - low + 1).clamp(min=0)

    def queries_of_keys(self, span: Span) -> Tensor:
        """Return the number of queries that may attend to each key, [s_kv]."""
        j = torch.arange(span.s_kv, device=self.q.device) - self.shift(span)
        low = torch.zeros_like(j) if self.right is None else (j - self.right).clamp(min=0)
        high = torch.full_like(j, span.s_q - 1)
        if self.left is not None:
            high = high.minimum(j + self.left)
        return (high - low + 1).clamp(min=0)


@dataclass(frozen=True)
class Scores:
    """S of a piece [B, H, R, K], and what it was made of.

    x       scale q.k
    tanh    tanh(x / softcap), None without one
    s       -inf where `attends` isn't
    attends bool, [R, K] or S's shape: the mask's pairs, less those whose bias is -inf
    offset  |bias| + |slope distance|, None where there is neither
    """

    x: Tensor
    tanh: Tensor | None
    s: Tensor
    attends: Tensor
    offset: Tensor | None


@dataclass(frozen=True)
class Piece:
    """A part of the call; queries and keys are counted within the sequence."""

    problem: Problem
    span: Span
    batches: slice
    heads: slice
    queries: range
    keys: range

    def _in_memory(self, tensor: Tensor) -> Tensor:
        """The piece's queries and query heads of a [b, s_q, h_q, ...] tensor, as a view."""
        group, first = self.problem.group, self.span.first_q
        rows = slice(first + self.queries.start, first + self.queries.stop)
        heads = slice(self.heads.start * group, self.heads.stop * group)
        return tensor[self.batches, rows, heads]

    def _keys_in_memory(self, tensor: Tensor) -> Tensor:
        first = self.span.first_k
        keys = slice(first + self.keys.start, first + self.keys.stop)
        return tensor[self.batches, keys, self.heads]

    def _stacked(self, tensor: Tensor) -> Tensor:
        """Return [B, H * group, queries, ...] as [B, H, R, ...]."""
        b, heads, queries, *rest = tensor.shape
        group = self.problem.group
        return tensor.reshape(b, heads // group, group * queries, *rest)

    def _unstacked(self, rows: Tensor) -> Tensor:
        """Return [B, H, R, ...] as [B, H * group, queries, ...]."""
        b, heads, _, *rest = rows.shape
        return rows.reshape(b, heads * self.problem.group, len(self.queries), *rest)

    def rows_of(self, tensor: Tensor) -> Tensor:
        """Return the piece's rows of [b, s_q, h_q, c], as float64 [B, H, R, c]."""
        return self._stacked(self._in_memory(tensor).double().transpose(1, 2))

    def keys_of(self, tensor: Tensor) -> Tensor:
        """Return the piece's keys of [b, s_kv, h_kv, c], as float64 [B, H, K, c]."""
        return self._keys_in_memory(tensor).double().transpose(1, 2)

    def statistic_of(self, tensor: Tensor) -> Tensor:
        """Return the piece's rows of [b, h_q, s_q], as float64 [B, H, R, 1]."""
        view = self._in_memory(tensor.transpose(1, 2))
        return self._stacked(view.double().transpose(1, 2))[..., None]

    def per_head(self, tensor: Tensor) -> Tensor:
        """Return the piece's heads of [h_q], as float64 [1, H, R, 1]."""
        group = self.problem.group
        own = tensor[self.heads.start * group : self.heads.stop * group].double()
        return self._stacked(own[None, :, None, None].expand(-1, -1, len(self.queries), -1))

    def write_rows(self, target: Tensor, rows: Tensor) -> None:
        """Store [B, H, R, c] in a [b, s_q, h_q, c] tensor."""
        self._in_memory(target).copy_(self._unstacked(rows).transpose(1, 2))

    def write_statistic(self, target: Tensor, rows: Tensor) -> None:
        """Store [B, H, R, 1] in a [b, h_q, s_q] tensor."""
        self._in_memory(target.transpose(1, 2)).copy_(self._unstacked(rows[..., 0]).transpose(1, 2))

    def add_keys(self, target: Tensor, keys: Tensor) -> None:
        """Add [B, H, K, c] to a [b, s_kv, h_kv, c] tensor; a boolean one is or'ed."""
        view = self._keys_in_memory(target)
        view += keys.transpose(1, 2)

    def bias_view(self, bias: Tensor) -> Tensor:
        """The part of a [b or 1, h_q or 1, s_q or 1, s_kv] tensor that the piece meets, a view."""
        group, wanted = self.problem.group, bias
        if bias.shape[0] > 1:
            wanted = wanted[self.batches]
        if bias.shape[1] > 1:
            wanted = wanted[:, self.heads.start * group : self.heads.stop * group]
        if bias.shape[2] > 1:
            wanted = wanted[:, :, self.queries.start : self.queries.stop]
        return wanted[..., self.keys.start : self.keys.stop]

    def add_bias(self, target: Tensor, pairs: Tensor) -> None:
        """Add [B, H, R, K] to a tensor like the bias, summed over what that is broadcast over."""
        view = self.bias_view(target)
        view += self._unstacked(pairs).sum_to_size(view.shape)

    def bias_of(self, bias: Tensor) -> Tensor:
        """Return the bias of the piece's pairs, as float64 [B, H, R, K]."""
        heads = (self.heads.stop - self.heads.start) * self.problem.group
        wide = self.bias_view(bias).double()
        return self._stacked(wide.expand(-1, heads, len(self.queries), -1))

    @property
    def distance(self) -> Tensor:
        """How far each key is past each row's query, with the shift, [R, K]."""
        device = self.problem.q.device
        queries = torch.arange(self.queries.start, self.queries.stop, device=device)
        rows = queries.repeat(self.problem.group)[:, None] + self.problem.shift(self.span)
        return torch.arange(self.keys.start, self.keys.stop, device=device) - rows

    @cached_property
    def mask(self) -> Tensor:
        """Which pairs the masks leave, bool [R, K]."""
        distance = self.distance
        mask = torch.ones_like(distance, dtype=torch.bool)
        if self.problem.right is not None:
            mask &= distance <= self.problem.right
        if self.problem.left is not None:
            mask &= distance >= -self.problem.left
        return mask

    def keep(self) -> Tensor | None:
        """Which weights dropout keeps, bool [B, H, R, K]; None without dropout."""
        problem = self.problem
        if not problem.dropout_p:
            return None
        if problem.torch_mask:
            view = self._in_memory(problem.torch_keep.transpose(1, 2))
            return self._stacked(view[..., self.keys.start : self.keys.stop].transpose(1, 2))
        device, h_q = problem.q.device, problem.q.shape[2]
        first = self.span.number + self.batches.start
        batches = torch.arange(first, first + self.batches.stop - self.batches.start, device=device)
        heads = torch.arange(self.heads.start * problem.group, self.heads.stop * problem.group)
        queries = torch.arange(self.queries.start, self.queries.stop, device=device)
        blocks = batches[:, None] * h_q + heads.to(device)
        drawn = keep_mask(problem.seed, problem.dropout_p, blocks, queries, self.keys)
        return self._stacked(drawn)

    def scores(self, q: Tensor, k: Tensor) -> Scores:
        """The scores of q [B, H, R, d] and k [B, H, K, d]."""
        problem, inputs = self.problem, self.problem.inputs
        x = (q @ k.mT).mul_(problem.scale)
        tanh, s, offset, attends = None, x, None, self.mask
        if problem.softcap is not None:
            tanh = torch.tanh(x / problem.softcap)
            s = tanh * problem.softcap
        bias, slopes = optional(inputs, "bias"), optional(inputs, "alibi_slopes")
        if bias is not None:
            wide = self.bias_of(bias)
            s, offset = s + wide, wide.abs()
            unmasked = wide != -torch.inf
            if not bool(unmasked.all()):
                attends = attends & unmasked
                offset = offset.masked_fill(~attends, 0)
        if slopes is not None:
            distance = self.per_head(slopes) * self.distance.abs()
            s = s - distance
            offset = distance.abs() if offset is None else offset + distance.abs()
        return Scores(x, tanh, s.masked_fill(~self.mask, -torch.inf), attends, offset)


def attended_sum(weights: Tensor, attends: Tensor, values: Tensor) -> Tensor:
    """sum_j weights_ij values_jc over the pairs that attend alone; weights are 0 at the others.

    weights [..., R, K], values [..., K, c]. A product of matrices makes NaN of 0 times an
    infinity or a NaN, in rows that have no part in it: then pairs are chosen before they are added.
    """
    if bool(values.isfinite().all()):
        return weights @ values
    columns = [
        (weights * values[..., None, :, c]).masked_fill(~attends, 0).sum(-1)
        for c in range(values.shape[-1])
    ]
    return torch.stack(columns, -1)
