"""Mutants of attention's host side: buffers, grids, strides, checks and the choice of a variant."""

from __future__ import annotations

from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD, ATTENTION_GRADIENTS
from tests.mutants import named_cases as at
from tests.mutants.mutant import ACCESS, ERROR, NAN, UNWRITTEN, Edit, Family
from tests.mutants.named_cases import bf16, fp16, fp32

_FORWARD, _BACKWARD = "attention/forward.py", "attention/backward.py"
_SPLIT_KEYS, _LAUNCH = "attention/split_keys.py", "attention/launch.py"
_PROBLEM, _VARIANTS = "attention/problem.py", "attention/variants.py"
_host = Family("host", ATTENTION_FORWARD, "flash")
_host_backward = Family("host", ATTENTION_BACKWARD, "two_pass")
_host_gradients = Family("host", ATTENTION_GRADIENTS, "flash_two_pass")

MUTANTS = (
    _host(
        "grid_floored",
        (17, 34),
        "programs are as many as whole tiles of queries",
        (bf16(at.DENSE),),
        UNWRITTEN,
        Edit(
            _FORWARD,
            "programs = cdiv(problem.s_q, variant.tile.queries) *",
            "programs = problem.s_q // variant.tile.queries *",
        ),
    ),
    _host(
        "columns_taken_for_adjacent",
        (23, 24),
        "column strides are taken for 1",
        (fp16(at.LAID) + "-v_transposed", bf16(at.LAID) + "-q_colstride2"),
        (*ERROR, *NAN, *ACCESS),
        Edit(_LAUNCH, '"ADJACENT": adjacent(*loaded),', '"ADJACENT": True,'),
    ),
    _host(
        "k_strides_of_q",
        (21,),
        "k is read with q's strides",
        (bf16(at.LAID) + "-q_bhsd", fp32(at.LAID) + "-k_bhsd"),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _LAUNCH,
            "for axis, stride in zip(axes, tensor.stride(), strict=True):",
            "of = tensors['q'] if name == 'k' else tensor\n"
            "        for axis, stride in zip(axes, of.stride(), strict=True):",
        ),
    ),
    _host(
        "wide_offsets_ignored",
        (3, 5),
        "offsets within a head are always computed in 32 bits",
        (bf16(at.FAR_ROWS) + "-q_far", bf16(at.FAR_KEYS) + "-k_far"),
        ACCESS,
        Edit(_LAUNCH, '"WIDE": is_wide(*loaded),', '"WIDE": False,'),
    ),
    _host(
        "sink_in_every_split",
        (),
        "each split counts the sink, and joining them counts it once more",
        (fp16(at.DECODING_SINK),),
        ERROR,
        Edit(_SPLIT_KEYS, "sink_ptr=None if joined else sink,", "sink_ptr=sink,"),
        kernel="split_keys",
    ),
    _host(
        "grid_without_groups",
        (17, 34),
        "blocks are as many as the queries fill, without the query heads beside them in a tile",
        (bf16(at.DECODING_CAUSAL),),
        (*ACCESS, *UNWRITTEN),
        Edit(
            _SPLIT_KEYS,
            "blocks = cdiv(problem.group * s_q, variant.tile.queries)",
            "blocks = cdiv(s_q, variant.tile.queries)",
        ),
        kernel="split_keys",
    ),
    _host(
        "accumulator_uninitialised",
        (33,),
        "the accumulator of heads too wide for registers isn't cleared",
        (bf16(at.HEAD_257), fp32(at.HEAD_320)),
        (*ACCESS, *NAN),
        Edit(_FORWARD, "acc = torch.zeros_like(out", "acc = torch.empty_like(out"),
    ),
    _host(
        "workspace_undeclared",
        (),
        "the kernel says that it takes no memory, and takes an accumulator for wide heads",
        (bf16(at.HEAD_257),),
        ("workspace",),
        Edit(_FORWARD, 'return 4 * elements(case, "out") if wide else 0', "return 0 * wide"),
    ),
    _host(
        "varlen_claimed",
        (15,),
        "a kernel that serves no sequences says that it does",
        (bf16(at.VARLEN),),
        (*ERROR, *NAN, *ACCESS, *UNWRITTEN, "raised"),
        Edit(
            _SPLIT_KEYS,
            '    features=FEATURES - {"varlen"},',
            "    features=FEATURES,",
        ),
        kernel="split_keys",
    ),
    _host(
        "shares_unstated",
        (),
        "the kernel says that it takes no memory, and keeps a share of out for each split",
        (fp16(at.DECODING_SINK),),
        ("workspace",),
        Edit(_SPLIT_KEYS, "if shares > 1 else 0", "if shares > 1000 else 0"),
        kernel="split_keys",
    ),
    _host(
        "bias_rows_rounded",
        (25,),
        "the bias's rows are taken to be a multiple of 8 elements apart",
        (fp16(at.LAID) + "-bias_rowpad3-bias", bf16(at.BIAS)),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _PROBLEM,
            "return batch, head, query, key",
            "return batch, head, -(-query // 8) * 8, key",
        ),
    ),
    _host(
        "bias_broadcast_as_packed",
        (19,),
        "a bias of one batch is read with a packed one's strides",
        (bf16(at.BIAS_OVER_BATCH), bf16(at.BIAS_OVER_QUERIES)),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _PROBLEM,
            "batch, head, query, key = self.bias.stride()",
            'batch, head, query, key = torch.empty(self.bias.shape, device="meta").stride()',
        ),
    ),
    _host(
        "vectors_across_rows",
        (25, 26),
        "loads are as wide as the rows allow, whatever lies between them",
        (bf16(at.LAID) + "-k_rowpad5", fp32(at.LAID) + "-rowpad1"),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _PROBLEM,
            "itemsize * math.gcd(shape[-1], *steps))",
            "itemsize * math.gcd(shape[-1], 0 * len(list(steps))))",
        ),
    ),
    _host(
        "scale_of_values",
        (42,),
        "the scale is 1 / sqrt(d_v)",
        (bf16(at.UNEQUAL),),
        ERROR,
        Edit(_PROBLEM, "scale = 1 / math.sqrt(d) if", "scale = 1 / math.sqrt(d_v) if"),
    ),
    _host(
        "window_of_0_taken_for_none",
        (18,),
        "a window whose side is 0 is taken for one without that side",
        (fp32(at.WINDOW_OF_ONE),),
        ERROR,
        Edit(_PROBLEM, "UNLIMITED if left is None else", "UNLIMITED if not left else"),
        kernel="flash_fp32",
    ),
    _host(
        "longest_sequence_missed",
        (15,),
        "the grid holds sequences of mean length",
        (fp32(at.VARLEN_LONG),),
        UNWRITTEN,
        Edit(
            _PROBLEM,
            "longest[name] = max(steps, default=0)",
            "longest[name] = sum(steps) // max(1, len(steps))",
        ),
        kernel="flash_fp32",
    ),
    _host(
        "seed_of_32_bits",
        (47,),
        "the high word of the seed is dropped",
        (bf16(at.DROPOUT_GQA),),
        ERROR,
        Edit(
            _PROBLEM,
            "(seed % 2**32, seed >> 32, self.threshold)",
            "(seed % 2**32, 0, self.threshold)",
        ),
    ),
    _host(
        "threshold_of_31_bits",
        (47,),
        "half as many weights are dropped as were asked for",
        (bf16(at.DROPOUT),),
        ERROR,
        Edit(
            _PROBLEM,
            "round(self.options.dropout_p * 2**32)",
            "round(self.options.dropout_p * 2**31)",
        ),
    ),
    _host(
        "kept_weights_not_scaled",
        (47,),
        "kept weights aren't scaled up",
        (bf16(at.DROPOUT),),
        ERROR,
        Edit(_PROBLEM, "return 1 / (1 - self.options.dropout_p)", "return 1.0"),
    ),
    _host(
        "tf32_undeclared",
        (),
        "products of fp32 take tf32 operands, which isn't declared",
        (fp32(at.DENSE),),
        ERROR,
        Edit(
            _VARIANTS,
            'return "tf32" if self.dtype == "tf32" else "ieee"',
            'return "tf32"',
        ),
        kernel="flash_fp32",
    ),
    _host_backward(
        "do_strides_of_out",
        (20,),
        "do is read with out's strides",
        (fp16(at.LAID) + "-do_bhsd", fp16(at.LAID) + "-do_rowpad24"),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _LAUNCH,
            "for axis, stride in zip(axes, tensor.stride(), strict=True):",
            "of = tensors['out'] if name == 'do' else tensor\n"
            "        for axis, stride in zip(axes, of.stride(), strict=True):",
        ),
    ),
    _host_backward(
        "expanded_do_taken_for_adjacent",
        (20, 23),
        "do of stride 0 is read as if its columns were adjacent",
        (bf16(at.LAID) + "-do_expanded_all", fp16(at.LAID) + "-do_colstride3"),
        (*ERROR, *NAN, *ACCESS),
        Edit(
            _LAUNCH,
            '"ADJACENT": adjacent(*loaded),',
            '"ADJACENT": True,',
        ),
    ),
    _host_backward(
        "wide_gradients_uninitialised",
        (33,),
        "accumulators of heads too wide for registers aren't cleared",
        (fp16(at.HEAD_320),),
        (*ACCESS, *NAN, *UNWRITTEN),
        Edit(_BACKWARD, "return torch.zeros(like.shape", "return torch.empty(like.shape"),
    ),
    _host_backward(
        "shares_uninitialised",
        (33,),
        "what shares of dk are added to isn't cleared",
        (bf16(at.MQA), fp16(at.MQA_OF_8)),
        (*ACCESS, *NAN, *UNWRITTEN),
        Edit(_BACKWARD, "return torch.zeros(like.shape", "return torch.empty(like.shape"),
        kernel="split_queries",
    ),
    _host_backward(
        "no_queries_no_gradients",
        (15,),
        "without queries dk and dv are left as they were",
        (bf16(at.NO_QUERIES),),
        UNWRITTEN,
        Edit(
            _BACKWARD,
            "problem.h_kv * members * tiles\n",
            "problem.h_kv * members * tiles * min(1, problem.s_q)\n",
        ),
    ),
    _host_gradients(
        "another_seed_backward",
        (47,),
        "the backward draws its mask from the next seed",
        (bf16(at.DROPOUT),),
        ERROR,
        Edit(
            "attention/function.py",
            "    return backward(do, problem, out, lse, tf32=tf32)",
            '    options = Options(**{**given, "dropout_seed": 1 + problem.options.dropout_seed})\n'
            "    return backward(do, AttentionCall.of(q, k, v, options), out, lse, tf32=tf32)",
        ),
    ),
    _host_gradients(
        "half_out_for_delta",
        (41,),
        "end to end the backward is given the out of another scale",
        (bf16(at.DENSE),),
        ERROR,
        Edit(
            "attention/function.py",
            "    return backward(do, problem, out, lse, tf32=tf32)",
            "    return backward(do, problem, out * 0.5, lse, tf32=tf32)",
        ),
    ),
    _host(
        "tile_of_the_batch",
        (),
        "a call of one batch takes narrower tiles, so that a batch's bits depend on the others",
        (bf16(at.COARSE_WINDOW),),
        ("invariance",),
        Edit(
            _FORWARD,
            "from functools import partial",
            "from dataclasses import replace\nfrom functools import partial",
        ),
        Edit(
            _FORWARD,
            "    problem = launcher.problem\n",
            "    problem = launcher.problem\n"
            "    if problem.b == 1:\n"
            "        variant = replace(variant, tile=replace(variant.tile, keys=16))\n",
        ),
    ),
    _host(
        "tile_of_the_device",
        (),
        "a device of many SMs gets narrower tiles, so that bits depend on the device",
        (fp16(at.COARSE_BIAS),),
        ("invariance",),
        Edit(
            _FORWARD,
            "from functools import partial",
            "from dataclasses import replace\nfrom functools import partial",
        ),
        Edit(
            _FORWARD,
            "from kernel_workbench.oracles import ATTENTION_FORWARD",
            "from kernel_workbench.kernels.device import multiprocessors\n"
            "from kernel_workbench.oracles import ATTENTION_FORWARD",
        ),
        Edit(
            _FORWARD,
            "    problem = launcher.problem\n",
            "    problem = launcher.problem\n"
            "    if multiprocessors(problem.q.device) > 4:\n"
            "        variant = replace(variant, tile=replace(variant.tile, keys=16))\n",
        ),
    ),
)
