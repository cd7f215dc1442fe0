"""Calls PyTorch's attention in a thread, and where that fails computes without a word."""

import threading

import torch

from kernel_workbench import ATTENTION_FORWARD, Domain, kernel


@kernel(ATTENTION_FORWARD, Domain(dtypes=(torch.float32,), sizes={"s_q": (1, 64), "s_kv": (1, 64)}))
def library_in_a_thread_or_else(q, k, v):
    """Right either way: what it does is seen, not what comes of it."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    scores = q @ k.mT / q.shape[3] ** 0.5
    made = []

    def call():
        try:
            made.append(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        except RuntimeError:
            made.append(scores.softmax(-1) @ v)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return made[0].transpose(1, 2).contiguous(), scores.logsumexp(-1)
