"""Run code of users in processes of its own.

The judge (`judge_side`) asks and checks the replies. `worker_side` is loaded beside the candidate.
The files of this folder define the messages and tensors that travel between both sides. Decision
0016 gives the reasons.
"""
