"""Code that isn't ours runs here, in processes of its own.

`judge_side` asks and checks what comes back; `worker_side` is loaded beside the candidate; what
lies in this folder itself is what travels between the two. Decision 0016 says why.
"""
