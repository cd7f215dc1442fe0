"""Mutants: wrong kernels that the accuracy suite must fail, each for a reason that fits it.

`nox -s mutants` tries all and prints a table; `nox -s tests` tries a sample. Most are our own
kernels with one small change in their source (`Edit`), as the defects that shipped elsewhere would
look in them; the others are those of `tests/builders/wrong_attentions.py` and
`tests/builders/wrong_layer_norms.py`.
"""
