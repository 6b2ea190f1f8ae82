"""What the parts of a job cost, fitted to how long such jobs took: non-negative, and not led astray by odd ones.

Weighted least squares on relative errors. `known` costs (of nothing measured) are leant on while measurements are few.
No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDS = 4
_NEAR = 2  # jobs before and after one that tell what was usual at the time
_ODD = 1.4  # times the usual, or that part of it: something else got in the way
_ODD_WEIGHT = 0.1
_LEVEL_JOBS = 5
_LEVEL_FADING = 0.7


def fit_costs(
    jobs: np.ndarray, seconds: np.ndarray, weights: np.ndarray, known: np.ndarray, trust: np.ndarray
) -> np.ndarray:
    """What one of each part costs. `jobs`: `[jobs, parts]`, how much of each, oldest first; `weights`: of each job.

    `known`: costs that are held to be true; `trust`: how much each of them counts against a measurement, over its size.
    """
    is_odd = np.zeros(len(seconds), dtype=bool)
    costs = known
    for _ in range(_ROUNDS):
        kept = np.where(is_odd, _ODD_WEIGHT, 1.0) * weights
        costs = _solve(
            np.vstack([(kept / seconds)[:, None] * jobs, np.diag(trust)]), np.concatenate([kept, trust * known])
        )
        was_odd, is_odd = is_odd, _odd_ones(seconds / np.maximum(jobs @ costs, 1e-12))
        if (was_odd == is_odd).all():
            break
    return costs


def level(ratios: Sequence[float]) -> float:
    """How the newest jobs went against what was expected: their weighted median. `ratios`: newest last; 1 for none."""
    newest = list(reversed(ratios[-_LEVEL_JOBS:]))
    if not newest:
        return 1.0
    order = sorted(range(len(newest)), key=newest.__getitem__)
    weights = [_LEVEL_FADING**age for age in range(len(newest))]
    half, reached = sum(weights) / 2, 0.0
    for index in order:
        reached += weights[index]
        if reached >= half:
            return newest[index]
    return newest[order[-1]]


def usual_then(ratios: np.ndarray) -> np.ndarray:
    """How jobs went around the time of each, oldest first: running medians."""
    return np.array([np.median(ratios[max(0, at - _NEAR) : at + _NEAR + 1]) for at in range(len(ratios))])


def _odd_ones(ratios: np.ndarray) -> np.ndarray:
    """Those far from what was usual then."""
    are_odd: np.ndarray = np.abs(np.log(ratios / usual_then(ratios))) > np.log(_ODD)
    return are_odd


def _solve(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares; what would come out negative is left out, and the rest solved again."""
    free = np.ones(matrix.shape[1], dtype=bool)
    costs = np.zeros(matrix.shape[1])
    for _ in range(matrix.shape[1]):
        costs = np.zeros(matrix.shape[1])
        costs[free] = np.linalg.lstsq(matrix[:, free], wanted, rcond=None)[0]
        if (costs >= 0).all():
            break
        free &= costs >= 0
    return np.maximum(costs, 0.0)
