"""Which node combinations to look at, and which of them their parts make needless."""

from collections.abc import Iterable, Mapping
from itertools import combinations, combinations_with_replacement, product

Combination = tuple[str, ...]
"""Names of configurations, sorted: a multiset."""


def enumerate_combinations(configurations: Iterable[str], n_max: int, mixed_max: int) -> list[Combination]:
    """Up to `n_max` equal nodes, and up to `mixed_max` of two configurations; smaller ones first."""
    names = sorted(set(configurations))
    equal = [(name,) * count for name in names for count in range(1, n_max + 1)]
    mixed = [
        combination
        for pair in combinations(names, 2)
        for size in range(2, mixed_max + 1)
        for combination in combinations_with_replacement(pair, size)
        if len(set(combination)) == 2
    ]
    return sorted(equal + mixed, key=lambda c: (len(c), c))


def best_split(combination: Combination, best: Mapping[Combination, float]) -> float:
    """The most that a combination gives as two parts; parts that were never placed give nothing.

    A template that gives no more than that is never needed: the parts cost the same, take the same nodes
    of the same pool, and each part's best is itself the best of its own splits (solver.md, "Lossless
    pruning").
    """
    counts = {name: combination.count(name) for name in sorted(set(combination))}
    most = 0.0
    for taken in product(*(range(count + 1) for count in counts.values())):
        part = tuple(n for n, k in zip(counts, taken, strict=True) for _ in range(k))
        rest = tuple(n for (n, count), k in zip(counts.items(), taken, strict=True) for _ in range(count - k))
        if part and rest:
            most = max(most, best.get(part, 0.0) + best.get(rest, 0.0))
    return most
