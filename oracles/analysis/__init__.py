"""Errors of a torch reference, operation by operation: bounds that derive themselves.

A reference is a plain function on tensors. It runs in float64, operation by operation, and beside
each value v goes a bound e on how far a kernel's may be from it (running error analysis: Wilkinson;
Higham, Accuracy and Stability, 3.3), by a rule for each aten operation.
docs/derivations/analysis.md has the rules, and how near derivations by hand come.

    truth      the outputs in float64
    bounds     how far a kernel with some numerics may be from them
    emulate    what an idealised kernel with these numerics returns
    rounds     marks a cast that a kernel may make
    Precision  inside of it floating-point numbers are made in one dtype, whatever is asked for
"""

from __future__ import annotations

from kernel_workbench.oracles.analysis.bounds import bounds, emulate, truth
from kernel_workbench.oracles.analysis.trace import NoRuleError, Precision, Reference, rounds

__all__ = ["NoRuleError", "Precision", "Reference", "bounds", "emulate", "rounds", "truth"]
