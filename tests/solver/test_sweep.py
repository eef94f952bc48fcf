"""What the sweep walks: combinations, partitions, refusals. And that no number of cores matters."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import combinations_with_replacement

import numpy as np
import pytest

from schemas.catalog import Configuration, Phase, Runtime
from solver.compiled import compiled
from solver.kept import Kept, ServiceInputs
from solver.partitions import partitions
from solver.placement import Refusal, place, throughput_of
from solver.roofline import Roofline
from solver.rows import placement_of
from solver.space import Space
from solver.splits import best_splits
from solver.sweep import sweep

Make = Callable[..., Roofline]
Nodes = Callable[..., list[Configuration]]


def test_a_combination_s_rank_is_its_row() -> None:
    space = Space(configurations=5, n_max=4)
    for size, rows in enumerate(space.by_size, start=1):
        assert {*map(tuple, rows.tolist())} == {*combinations_with_replacement(range(5), size)}
        assert space.ranks(rows).tolist() == list(range(len(rows)))
        assert space.starts[size + 1] - space.starts[size] == len(rows)


def test_combinations_over_a_limit_are_left_out() -> None:
    space = Space(configurations=3, n_max=2)
    found = space.by_size[1][space.within(2, np.array([1.0, 2.0, 4.0]), 4.0)]
    assert found.tolist() == [[0, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("configurations", "n_max"), [(0, 1), (128, 1), (3, 0), (52, 7), (127, 100), (1, 10**11)]
)
def test_no_combinations_at_all_and_too_many_are_refused(configurations: int, n_max: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Space(configurations, n_max)


def test_every_partition_is_there_once() -> None:
    """Of different nodes Stirling's numbers by number of stages, times that number: any may be last."""
    parts = partitions(5)
    by_stages = [
        int(parts.starts[parts.groups[0, s + 1]] - parts.starts[parts.groups[0, s]]) for s in range(5)
    ]
    assert by_stages == [stages * ways for stages, ways in zip(range(1, 6), (1, 15, 25, 10, 1), strict=True)]


def test_equal_nodes_make_partitions_alike() -> None:
    """Of four equal nodes: 4 | 3+1, 2+2 | 2+1+1 | 1+1+1+1, by the size of the last stage as well."""
    parts, pattern = partitions(4), 0b111
    found = [
        (int(parts.last[g]).bit_count(), *sorted(int(m).bit_count() for m in parts.others[p] if m))
        for g in range(parts.groups[pattern, 0], parts.groups[pattern, 4])
        for p in range(parts.starts[g], parts.starts[g + 1])
    ]
    assert sorted(found) == [(1, 1, 1, 1), (1, 1, 2), (1, 3), (2, 1, 1), (2, 2), (3, 1), (4,)]


def test_the_best_split_looks_at_all_parts() -> None:
    space = Space(configurations=3, n_max=3)
    best = np.zeros(space.starts[-1])
    for size, row, given in ((1, [0], 1.0), (1, [2], 3.0), (2, [0, 1], 2.5), (2, [1, 2], 5.0)):
        best[space.starts[size] + space.ranks(np.array([row], dtype=np.int8))[0]] = given
    rows = np.array([[0, 1, 2], [0, 0, 0], [1, 1, 2]], dtype=np.int8)
    assert best_splits(rows, best, space.starts, space.choose).tolist() == [6.0, 1.0, 5.0]


# --------------------------------------------------------------------------------------------------- sweep


def services(roofline: Make, runtime: Runtime, phase: Phase) -> list[ServiceInputs]:
    made = [("qwen3-32b", "bf16"), ("qwen3-32b", "fp8"), ("phi-4-14b", "bf16")]
    return [ServiceInputs(roofline(*names, phase=phase), runtime) for names in made]


@pytest.mark.parametrize(("runtime", "phase"), [("coral", "decode"), ("vllm", "both")])
def test_neither_cores_nor_order_change_the_answer(
    roofline: Make, nodes: Nodes, runtime: Runtime, phase: Phase
) -> None:
    asked, told = services(roofline, runtime, phase), nodes("1xL4", "1xL40S", "2xA100", "4xL4")
    seen: list[tuple[int, int]] = []
    alone = sweep(asked, told, n_max=4, rho=12, cores=1, progress=lambda *done: seen.append(done))
    together = sweep(asked[::-1], told, n_max=4, rho=12, cores=3)
    assert list(alone) == [service.key for service in asked]
    for key, kept in alone.items():
        assert same(kept, together[key])
        assert kept.considered + kept.over_rho == sum(map(len, Space(4, 4).by_size))
        assert kept.considered == kept.valid + sum(kept.refused.values())
    assert (
        seen[-1][0]
        == seen[-1][1]
        == max(k.considered for k in alone.values()) + alone[asked[2].key].considered
    )


def same(one: Kept, other: Kept) -> bool:
    return all(np.array_equal(getattr(one, part.name), getattr(other, part.name)) for part in fields(Kept))


@pytest.mark.parametrize(("runtime", "phase"), [("coral", "prefill"), ("vllm", "both"), ("vllm", "decode")])
def test_rows_are_what_one_question_answers(
    roofline: Make, nodes: Nodes, runtime: Runtime, phase: Phase
) -> None:
    asked, told = services(roofline, runtime, phase)[0], nodes("1xL4", "1xL40S", "2xA100", "4xL4")
    kept = sweep([asked], told, n_max=3, rho=12)[asked.key]
    assert len(kept) >= 2
    for row in range(len(kept)):
        here = [told[c] for c in kept.combination[row].tolist() if c >= 0]
        assert throughput_of(asked, here) == kept.throughput[row]
        placed = place(asked.roofline, here, runtime)
        assert placed == placement_of(asked, told, kept, row)


def test_variants_compete(roofline: Make, nodes: Nodes) -> None:
    """No row of a variant is worth less than what another gives on the same nodes."""
    asked, told = services(roofline, "coral", "decode")[:2], nodes("1xL40S", "1xH100")
    kept = sweep(asked, told, n_max=2, rho=12)
    rows = {key: {*map(tuple, found.combination.tolist())} for key, found in kept.items()}
    assert all(rows.values()) or any(rows.values())
    assert not set.intersection(*rows.values())
    for service, other in (asked, asked[::-1]):
        for row, given in zip(
            kept[service.key].combination.tolist(), kept[service.key].throughput, strict=True
        ):
            assert given >= throughput_of(other, [told[c] for c in row if c >= 0])


@pytest.mark.parametrize(
    ("variant", "names", "runtime", "phase", "reasons"),
    [
        (
            "fp8",
            ("1xA10G", "1xL4"),
            "coral",
            "both",
            {"gpu-not-allowed": 3, "does-not-fit": 1, "slo-too-tight": 1},
        ),
        ("bf16", ("1xL4",), "coral", "both", {"does-not-fit": 2}),
        ("bf16", ("1xL4",), "vllm", "decode", {"no-parallelism": 1, "does-not-fit": 1}),
    ],
)
def test_refusals_are_counted_by_reason(
    roofline: Make,
    nodes: Nodes,
    variant: str,
    names: Sequence[str],
    runtime: Runtime,
    phase: Phase,
    reasons: dict[str, int],
) -> None:
    asked = ServiceInputs(roofline("qwen3-32b", variant, phase=phase), runtime)
    kept = sweep([asked], nodes(*names), n_max=2, rho=12)[asked.key]
    assert (kept.refused, kept.valid, len(kept)) == (reasons, 0, 0)


def test_no_combination_within_rho_is_an_empty_answer(roofline: Make, nodes: Nodes) -> None:
    asked = ServiceInputs(roofline("gpt-oss-20b", "mxfp4"), "coral")
    kept = sweep([asked], nodes("8xH100"), n_max=2, rho=12)[asked.key]
    assert (kept.considered, kept.over_rho, kept.combination.shape) == (0, 2, (0, 2))


def test_bad_questions_are_refused(roofline: Make, nodes: Nodes) -> None:
    asked = ServiceInputs(roofline("gpt-oss-20b", "mxfp4"), "coral")
    with pytest.raises(ValueError, match=r"rho: 0\.5, expected at least 1"):
        sweep([asked], nodes("1xL4"), n_max=1, rho=0.5)
    with pytest.raises(ValueError, match=r"configurations: \['1xL4'\] given twice"):
        sweep([asked], nodes("1xL4", "1xL4"), n_max=1, rho=12)
    with pytest.raises(ValueError, match=r"services: .* given twice"):
        sweep([asked, asked], nodes("1xL4"), n_max=1, rho=12)
    with pytest.raises(ValueError, match="n_max: 9, expected at most 8 for runtime coral"):
        sweep([asked], nodes("1xL4"), n_max=9, rho=1000)


def test_a_node_that_adds_nothing_is_no_part_of_a_template(roofline: Make, nodes: Nodes) -> None:
    r = roofline("qwen3-235b-a22b", "bf16")
    assert place(r, nodes("1xL4"), "coral") == Refusal("does-not-fit")
    with pytest.raises(ValueError, match="1xL4 would add nothing"):
        place(r, nodes("1xL4", "8xH200"), "coral")


def test_loops_are_compiled_where_they_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only disk without a home: numba then refuses to keep what it compiles."""

    def njit(*, cache: bool = False, nogil: bool) -> Callable[[Callable[[int], int]], Callable[[int], int]]:
        if cache:
            raise RuntimeError("cannot cache function 'f': no locator available for file '/f.py'")
        return lambda loop: lambda x: loop(x) + 1000 * nogil

    monkeypatch.setattr("solver.compiled.njit", njit)
    assert compiled(abs)(-2) == 1002
