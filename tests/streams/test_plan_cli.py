"""`coral plan`, `coral explain plan`, `coral diff`: text for people, JSON for programs, one line for what
cannot be."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from schemas.allocation import AllocationPolicy
from schemas.problems import Problem
from solver.allocation import NoAnswerError
from solver.library_file import load_library
from solver.verify import verify
from streams.cli import app
from streams.plan_record import PlanRecord

BAD_INPUT = 2
CORE = ("--setup", "core", "--n-max", "2")
EAST = "aws/us-east-2"
PHI = "phi-4-14b"
PAIR = {"model": PHI, "slo_class": "interactive", "prefill_tokens_per_s": 1, "decode_tokens_per_s": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a plan, `plan.json`, and the libraries that were built meanwhile."""
    return tmp_path_factory.mktemp("plan")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in [name for name in os.environ if name.startswith("CORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CORAL_STATE_DIR", str(folder / "state"))
    monkeypatch.chdir(folder)


def coral(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def told(*arguments: str) -> Any:
    """What a command gives as JSON."""
    result = coral(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: str) -> str:
    result = coral(*arguments)
    assert result.exit_code == BAD_INPUT, result.output
    assert result.stderr.startswith("coral: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def plan(folder: Path) -> Path:
    """A plan of the paper's core set-up, with few templates."""
    path = folder / "plan.json"
    if not path.exists():
        result = coral("plan", *CORE, "-o", str(path))
        assert result.exit_code == 0, result.output
        assert PHI in result.stdout
        assert "no plan that meets as much costs less than" in result.stdout
    return path


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# ---------------------------------------------------------------------------------------------- the plan


def test_without_files_the_papers_set_up_is_planned(plan: Path) -> None:
    found = json.loads(plan.read_text())
    assert found["cost_usd_per_hour"] >= found["bound_usd_per_hour"] > 0
    assert 0 <= found["gap"] <= 1e-3
    assert found["seconds"] > 0
    assert found["unmet"] == []
    assert {row["service"].split("/")[0] for row in found["instances"]} == {"qwen3-32b", "gpt-oss-20b", PHI}
    assert all(row["why"] for row in found["instances"])
    assert any(row["of_best"] == pytest.approx(1) for row in found["instances"])
    assert all(row["of_best"] <= 1 + 1e-9 for row in found["instances"])
    record = PlanRecord.model_validate_json(plan.read_text())
    assert record.problem.policy == AllocationPolicy()  # no half rule, no surcharge
    assert record.problem.sliced == ()
    rates = {d.service.key: d.rate for d in record.problem.demands}
    assert rates[f"{PHI}/interactive/prefill"] == 10 * 1615  # no head-room
    assert verify(record.problem, record.answer) == ()


def test_the_same_question_has_the_same_plan(plan: Path) -> None:
    again = told("plan", *CORE)
    before = json.loads(plan.read_text())
    assert again["instances"] == before["instances"]
    assert again["problem"] == before["problem"]
    other = told("plan", *CORE, "--seed", "5")
    assert other["problem"]["stocks"] != before["problem"]["stocks"]


def test_files_say_demand_stock_prices_and_what_runs(folder: Path) -> None:
    demand = written(folder, "demand.yaml", f"demand: [{{model: {PHI}, requests_per_s: 2}}]")
    stock = written(
        folder,
        "stock.yaml",
        "availability:\n"
        f"  - {{region: {EAST}, configuration: 1xL40S, nodes: 3}}\n"
        f"  - {{region: {EAST}, market: reserved, configuration: 1xL4, nodes: 1}}\n",
    )
    prices = written(
        folder, "prices.json", json.dumps({"prices": [price(EAST, "1xL40S", 5.0)]})
    )  # JSON will do as well
    files = ("--demand", demand, "--availability", stock, "--prices", prices)
    found = told("plan", *CORE, *files)
    problem = Problem.model_validate_json(json.dumps(found["problem"]))
    assert {d.service.key: d.rate for d in problem.demands} == {
        f"{PHI}/interactive/prefill": pytest.approx(2 * 1615),
        f"{PHI}/interactive/decode": pytest.approx(2 * 106),
    }
    assert [(s.configuration, s.nodes, s.usd_per_hour) for s in problem.stocks] == [
        ("1xL40S", 3, 5.0),
        ("1xL4", 1, 0.0),  # reserved nodes are paid anyway
    ]
    saved = written(folder, "running.json", json.dumps(found))
    again = told("plan", *CORE, *files, "--running", saved)
    assert again["penalty_usd_per_hour"] == 0
    row = found["instances"][0]
    cloud_region, zone, market = row["pool"].rsplit("/", 2)
    line = {"template": row["template"], "region": cloud_region, "zone": zone, "market": market, "count": 1}
    named = written(folder, "named.json", json.dumps({"running": [line]}))
    partly = told("plan", *CORE, *files, "--running", named)
    assert 0 <= partly["penalty_usd_per_hour"] <= found["penalty_usd_per_hour"]
    assert partly["problem"]["running"][0]["template"]["id"] == row["template"]


def test_demand_that_cannot_be_met_is_an_answer(folder: Path) -> None:
    stock = written(
        folder, "little.yaml", f"availability: [{{region: {EAST}, configuration: 1xL4, nodes: 1}}]"
    )
    found = told("plan", *CORE, "--availability", stock)
    assert found["unmet"]
    assert all(row["binding"] for row in found["unmet"])
    nothing = told("plan", *CORE, "--availability", written(folder, "none.yaml", "availability: []"))
    assert nothing["instances"] == []
    assert {row["share"] for row in nothing["unmet"]} == {1.0}
    assert "Unmet demand" in coral("plan", *CORE, "--availability", stock).stdout


def test_a_library_without_templates_is_an_answer() -> None:
    found = told("plan", "--setup", "core", "--n-max", "1", "--rho", "1")
    assert found["instances"] == []
    assert {row["binding"] for row in found["unmet"]} == {"no template fits"}


def test_nothing_asked_for_costs_nothing(folder: Path) -> None:
    found = told("plan", *CORE, "--demand", written(folder, "no.yaml", "demand: []"))
    assert (found["cost_usd_per_hour"], found["gap"], found["unmet"]) == (0, 0, [])


def test_a_price_of_a_place_without_stock_is_said_to_go_unused(folder: Path) -> None:
    lines = [price(EAST, "1xL4", 0.5), price(EAST, "1xL4", 0.2) | {"market": "spot"}]
    prices = written(folder, "spare.json", json.dumps({"prices": lines}, indent=1))
    result = coral("plan", *CORE, "--prices", prices, "--json")
    (unused,) = json.loads(result.stdout)["unused"]
    assert unused.endswith(f"spare.json:8: price of 1xL4 in {EAST}/*/spot")
    assert result.stderr == f"coral: {unused} goes unused: no stock there\n"
    stock = written(
        folder,
        "zones.yaml",
        f"availability: [{{region: {EAST}, zone: a, market: spot, configuration: 1xL4, nodes: 2}}]",
    )
    found = told("plan", *CORE, "--prices", prices, "--availability", stock)
    assert [s["usd_per_hour"] for s in found["problem"]["stocks"]] == [0.2]  # of any zone
    assert [line.partition("price of ")[2] for line in found["unused"]] == [f"1xL4 in {EAST}/*/on-demand"]


def test_what_a_policy_excludes_is_in_no_plan(folder: Path, plan: Path) -> None:
    before = {name for row in json.loads(plan.read_text())["instances"] for name in row["nodes"].split()}
    assert "1xL40S" in before
    policy = written(folder, "without.yaml", "excluded_configurations: [1xL40S, 2xL40S]")
    found = told("plan", *CORE, "--policy", policy)
    assert "policy" not in found["problem"]  # nothing else is asked
    assert found["instances"]
    assert not {name for row in found["instances"] for name in row["nodes"].split()} & {"1xL40S", "2xL40S"}


def price(region: str, configuration: str, usd: float) -> dict[str, object]:
    return {"region": region, "configuration": configuration, "usd_per_hour": usd}


# ------------------------------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("demand", "demand: [{model: gpt-5, requests_per_s: 1}]", "demand.0.model: 'gpt-5'"),
        ("demand", "demand: [{model: phi-4-14b, requests_per_s: .nan}]", "demand.0.requests_per_s"),
        ("demand", "demand: {", "expected"),
        ("availability", f"availability: [{{region: {EAST}, configuration: 3xL4, nodes: 1}}]", "'3xL4'"),
        (
            "availability",
            f"availability: [{{region: {EAST}, configuration: 1xL4, market: spot, nodes: 1}}]",
            "availability.0: 1xL4 in aws/us-east-2/*/spot has no price",
        ),
        ("prices", f"prices: [{{region: {EAST}, configuration: 1xL4, usd_per_hour: 0}}]", "expected above 0"),
        (
            "running",
            f"running: [{{template: abc, region: {EAST}, count: 1}}]",
            "running.0.template: 'abc' is not in the library",
        ),
        (
            "demand",
            "demand: [{model: phi-4-14b, requests_per_s: 1e308}]",
            "demand.0: inf a second of prefill, inf a second of decode, expected finite numbers",
        ),
        ("running", "answer: {}", "running: Field required"),
        ("running", "{answer: {}, problem: {}}", "cost_usd_per_hour: Field required"),
        ("policy", "weights: {gpt-5: 2}", "weights: 'gpt-5', expected one of"),
        (
            "demand",
            f"demand: [{{model: {PHI}, requests_per_s: 1e+9}}]",
            "demand.0: 1.615e+12 a second of prefill, expected at most 1e+06 times what the best",
        ),
        ("policy", "weights: {phi-4-14b: 0}", "weights.phi-4-14b"),
        ("policy", "budget: 5", "budget: unknown key"),
        ("policy", "surcharge_per_step: 1e308", "surcharge_per_step: Input should be less than or equal to"),
        ("policy", "breach_usd_per_hour: 1e308", "breach_usd_per_hour: Input should be less than or equal"),
        ("policy", "excluded_configurations: [9xL4]", "excluded_configurations: '9xL4', expected one of"),
        ("prices", f"prices: [{{region: {EAST}, configuration: 7xL4, usd_per_hour: 1}}]", "'7xL4', expected"),
        (
            "prices",
            "prices: [{region: aws/mars, configuration: 1xL4, usd_per_hour: 1}]",
            "'aws/mars', expected",
        ),
        ("policy", "half_rule: [interactve]", "half_rule: 'interactve', expected one of interactive"),
        ("policy", "variants: {phi-4-14b: [fp9]}", "variants.phi-4-14b: 'fp9', expected one of bf16"),
        (
            "policy",
            json.dumps({"disaggregation": [PAIR | {"slo_class": "bulk"}]}),
            "disaggregation: 'phi-4-14b/bulk', expected one of",
        ),
    ],
)
def test_what_cannot_be_is_named_with_file_and_field(folder: Path, kind: str, text: str, said: str) -> None:
    line = refused("plan", *CORE, f"--{kind}", written(folder, f"bad-{kind}.yaml", text))
    assert said in line
    assert f"bad-{kind}.yaml:{2 if text.endswith('{') else 1}: " in line or "no plan" in line


def test_what_options_cannot_be(folder: Path) -> None:
    assert "--stock: 'plenty', expected one of full" in refused("plan", *CORE, "--stock", "plenty")
    for n_max in ("0", "-1"):
        assert f"--n-max: {n_max}, expected at least 1" in refused("plan", "--n-max", n_max)
    for rho in ("0.5", "0.0", "-1.0", "nan", "inf"):
        assert f"--rho: {rho}, expected a finite number of at least 1" in refused("plan", "--rho", rho)
    assert "--setup: 'nowhere' is neither a file" in refused("plan", "--setup", "nowhere")
    for option in ("--demand", "--availability", "--prices", "--running", "--policy", "--library"):
        line = refused("plan", *CORE, option, "absent.yaml")
        assert (
            line
            == f"coral: {option}: absent.yaml: No such file or directory, expected a file that can be read\n"
        )
        assert f"{option}: .: Is a directory" in refused("plan", *CORE, option, ".")
    assert "--out: " in refused("plan", *CORE, "-o", str(folder / "absent" / "plan.json"))


def test_a_library_that_is_cut_short_is_built_again_in_the_cache_and_refused_elsewhere(folder: Path) -> None:
    before = told("plan", "--setup", "core", "--n-max", "1")
    (cached,) = [
        file
        for file in (folder / "state" / "libraries").iterdir()
        if load_library(file).digest == before["limits"]["library"]
    ]
    short = cached.read_bytes()[: cached.stat().st_size // 2]
    cached.write_bytes(short)
    assert told("plan", "--setup", "core", "--n-max", "1")["instances"] == before["instances"]
    (folder / "short.templates").write_bytes(short)
    line = refused("plan", "--setup", "core", "--n-max", "1", "--library", "short.templates")
    assert "short.templates: not a library file" in line


def test_a_state_folder_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORAL_STATE_DIR", written(folder, "no-folder", ""))
    assert "state_dir: " in refused("plan", *CORE)


def test_a_set_up_of_ones_own_has_to_say_demand_and_stock(folder: Path) -> None:
    setup = written(
        folder,
        "mine.yaml",
        "catalog: shipped\nserve: {phi-4-14b: [interactive]}\nconfigurations: [1xL40S]\n"
        "slices: false\nruntime: coral\nn_max: 1\n",
    )
    assert "--demand: 'mine' is none of the paper's set-ups, expected a file" in refused(
        "plan", "--setup", setup
    )
    demand = written(folder, "both.yaml", f"demand: [{{model: {PHI}, requests_per_s: 2}}]")
    assert "--availability: 'mine'" in refused("plan", "--setup", setup, "--demand", demand)
    stock = written(
        folder, "l40s.yaml", f"availability: [{{region: {EAST}, configuration: 1xL40S, nodes: 9}}]"
    )
    found = told("plan", "--setup", setup, "--demand", demand, "--availability", stock)
    assert [row["service"] for row in found["instances"]] == [f"{PHI}/interactive/both"]
    assert found["problem"]["policy"]["half_rule"] == ["interactive"]  # robust unless it is the paper's


def test_what_runs_is_kept_in_mind_when_the_library_no_longer_has_it(plan: Path) -> None:
    found = told("plan", "--setup", "core", "--n-max", "1", "--running", str(plan))
    mixed = {row["template"] for row in json.loads(plan.read_text())["instances"] if "+" in row["nodes"]}
    assert mixed & {row["template"] for row in found["instances"]}
    assert found["penalty_usd_per_hour"] < json.loads(plan.read_text())["penalty_usd_per_hour"]


def test_part_of_a_node_that_is_sold_may_be_used(folder: Path) -> None:
    setup = written(
        folder,
        "parts.yaml",
        "catalog: shipped\nserve: {phi-4-14b: [interactive]}\nconfigurations: [8xH100]\n"
        "phases: [prefill, decode, both]\nruntime: coral\nn_max: 1\n",
    )
    demand = written(folder, "few.yaml", f"demand: [{{model: {PHI}, requests_per_s: 2}}]")
    stock = written(
        folder, "h100.yaml", f"availability: [{{region: {EAST}, configuration: 8xH100, nodes: 2}}]"
    )
    files = ("--setup", setup, "--demand", demand, "--availability", stock)
    found = told("plan", *files)
    assert {row["nodes"] for row in found["instances"]} == {"1xH100"}
    (bought,) = found["answer"]["nodes"]
    assert (bought["configuration"], bought["count"]) == ("8xH100", 1)
    assert found["bill_usd_per_hour"] == pytest.approx(bought["usd_per_hour"])
    (apart,) = found["problem"]["policy"]["disaggregation"]  # the solver may serve part of it in pairs
    assert apart["prefill_tokens_per_s"] > apart["decode_tokens_per_s"] > 0
    assert "8xH100" in coral("plan", *files).stdout
    assert {m["configuration"] for m in told("explain", "plan", *files)["one_more"]} == {"8xH100"}


def test_demand_that_contradicts_set_up_or_policy_is_named_where_it_was_written(
    folder: Path,
) -> None:
    setup = written(
        folder,
        "choice.yaml",
        "catalog: shipped\nserve: {phi-4-14b: [interactive], qwen3-32b: [interactive]}\nn_max: 1\n"
        "configurations: [1xL40S]\nslices: false\nphases: [prefill, decode, both]\n",
    )
    demand = written(
        folder, "thrice.yaml", f"demand:\n  - model: {PHI}\n    rates: {{prefill: 9, decode: 1, both: 2}}"
    )
    stock = written(
        folder, "few.yaml", f"availability: [{{region: {EAST}, configuration: 1xL40S, nodes: 9}}]"
    )
    files = ("--setup", setup, "--availability", stock, "--demand")
    line = refused("plan", *files, demand)
    assert "thrice.yaml:3: demand.0.rates: prefill, decode beside both, expected both alone" in line
    one = written(folder, "two.yaml", f"demand: [{{model: {PHI}, rates: {{prefill: 9, decode: 1}}}}]")
    for text, said in (
        ("replicas: [{model: qwen3-32b, at_least: 1}]", "replicas: 'qwen3-32b' has no demand, not even 0"),
        ("weights: {qwen3-32b: 2}", "weights: 'qwen3-32b' has no demand, not even 0"),
        (json.dumps({"disaggregation": [PAIR]}), f"disaggregation: '{PHI}/interactive/both' has no demand"),
    ):
        line = refused("plan", *files, one, "--policy", written(folder, "for-none.yaml", text))
        assert f"for-none.yaml:1: {said}" in line
        assert "expected one of phi-4-14b" in line


# --------------------------------------------------------------------------------- its neighbours, and others


def test_a_plan_is_explained_by_its_neighbours(plan: Path) -> None:
    found = told("explain", "plan", str(plan), "--one-more", "1xL40S")
    cost = found["plan"]["cost_usd_per_hour"]
    dearer = [a["outcome"]["usd_per_hour"] for a in found["alternatives"] if not a["outcome"]["total_unmet"]]
    assert dearer == sorted(dearer)
    assert all(usd >= cost - 1e-6 for usd in dearer)
    assert found["next_cheapest"] == found["alternatives"][0]
    assert all(binding["usd_per_hour"] > 0 for binding in found["binding"])
    assert all(more["outcome"]["usd_per_hour"] <= cost + 1e-6 for more in found["one_more"])
    assert {more["configuration"] for more in found["one_more"]} >= {"1xL40S"}
    costs = [s["outcome"]["usd_per_hour"] for s in found["simpler"]]
    assert len(costs) == 3
    assert sorted(costs, reverse=True) == costs
    assert costs[-1] >= cost - 1e-6
    text = coral("explain", "plan", str(plan)).stdout
    for title in ("Explained", "Without a place", "one node more", "simpler templates only"):
        assert title in text
    assert "the next cheapest plan" in text
    assert "--one-more: '1xH100' is sold nowhere" in refused(
        "explain", "plan", str(plan), "--one-more", "1xH100"
    )


def test_neighbours_without_a_plan_have_rows_of_their_own(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise NoAnswerError

    monkeypatch.setattr("streams.commands.plan.answered", none)
    found = told("explain", "plan", str(plan))
    assert found["alternatives"]
    every = [*found["alternatives"], *found["one_more"], *found["simpler"]]
    assert all((other["outcome"], other["change"]) == (None, None) for other in every)
    text = " ".join(coral("explain", "plan", str(plan)).stdout.split())
    for without in ("without 1", "without instances of several nodes"):
        assert re.search(f"{without}[^,]*, no plan was found that keeps all limits", text)


def test_two_plans_are_compared(folder: Path, plan: Path) -> None:
    same = told("diff", str(plan), str(plan))
    assert (same["asked"], same["unmet"], same["nodes"]) == ([], [], [])
    assert same["in_all"]["stay"] == sum(same["in_all"].values()) == same["figures"]["instances"][0]
    assert [line.partition(",")[0] for line in same["why"]] == ["the first plan would still do"]
    demand = written(folder, "more.yaml", f"demand: [{{model: {PHI}, requests_per_s: 12}}]")
    stock = written(
        folder, "west.yaml", "availability: [{region: aws/ap-northeast-2, configuration: 1xL40S, nodes: 2}]"
    )
    other = folder / "other.json"
    files = ("--demand", demand, "--availability", stock)
    assert coral("plan", *CORE, *files, "-o", str(other)).exit_code == 0
    found = told("diff", str(plan), str(other))
    first, second = found["figures"]["cost_usd_per_hour"]
    assert first > second > 0
    assert {"what": f"demand of {PHI}/interactive/decode", "was": 1060.0, "is": 1272.0} in found["asked"]
    gone = [row for row in found["instances"] if row["service"].startswith("qwen3-32b")]
    assert gone
    assert all(row["stop"] and not row["start"] for row in gone)
    assert any("would leave" in line and PHI in line for line in found["why"])
    assert any(line.startswith("stock: the first plan has") for line in found["why"])
    assert [row["what"].split("/")[0] for row in found["unmet"]] == [PHI, PHI]
    assert "Why" in coral("diff", str(plan), str(other)).stdout


def test_a_plan_that_breaks_the_next_policy_is_not_said_to_do(folder: Path, plan: Path) -> None:
    asked = (
        ("budget_usd_per_hour: 20", "but for the policy, the first plan would still do"),
        ("excluded_configurations: [1xL40S]", "stock: the first plan has"),
    )
    for text, said in asked:
        other = folder / "asked.json"
        policy = ("--policy", written(folder, "asked.yaml", text))
        assert coral("plan", *CORE, *policy, "-o", str(other)).exit_code == 0
        why = told("diff", str(plan), str(other))["why"]
        assert f"policy: {text.partition(':')[0]}" in why
        assert any(line.startswith(said) for line in why)
        assert not any(line.startswith("the first plan would") for line in why)


def test_what_is_no_plan_cannot_be_compared(folder: Path, plan: Path) -> None:
    junk = written(folder, "junk.json", '{"cost_usd_per_hour": 1}')
    line = refused("diff", str(plan), junk)
    assert "junk.json" in line
    assert "no plan, expected a file that `coral plan -o` wrote" in line
    assert "PLAN: absent.json" in refused("explain", "plan", "absent.json")


def test_a_plan_is_explained_under_its_own_question(plan: Path) -> None:
    assert "--setup: goes with no PLAN" in refused("explain", "plan", str(plan), "--setup", "extended")
    assert "--places: -1, expected at least 0" in refused("explain", "plan", str(plan), "--places", "-1")
    assert "--n-max: goes with no PLAN" in refused("explain", "plan", str(plan), "--n-max", "1")


def set_to(value: object, *way: int | str) -> Callable[[Any], None]:
    """What changes one value of a plan's JSON."""

    def change(at: Any) -> None:
        for step in way[:-1]:
            at = at[step]
        at[way[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_to(50, "answer", "chosen", 0, "count"), "capacity: "),
        (set_to(1.0, "answer", "usd_per_hour"), "price: total 1.0"),
        (set_to(50, "instances", 0, "count"), "instances.0.count: 50, the answer has 1"),
        (set_to([], "instances"), "instances: 0 of them, the answer has "),
        (set_to(1.0, "bill_usd_per_hour"), "bill_usd_per_hour: 1.0, the answer has "),
    ],
)
def test_a_plan_that_was_tampered_with_is_refused(
    folder: Path, plan: Path, change: Callable[[Any], None], said: str
) -> None:
    record = json.loads(plan.read_text())
    change(record)
    other = written(folder, "tampered.json", json.dumps(record))
    for command in (("explain", "plan", other), ("diff", str(plan), other), ("diff", other, str(plan))):
        assert f"tampered.json: no plan that keeps its question: {said}" in refused(*command)


def test_a_plan_with_ratings_of_its_own_is_not_explained(folder: Path, plan: Path) -> None:
    record = json.loads(plan.read_text())
    row = max(range(len(record["instances"])), key=lambda i: record["instances"][i]["throughput"])
    template = record["instances"][row]["template"]
    (at,) = (i for i, c in enumerate(record["answer"]["chosen"]) if c["template"]["id"] == template)
    record["instances"][row]["throughput"] = 1e12
    record["answer"]["chosen"][at]["rating"]["throughput"] = 1e12
    line = refused("explain", "plan", written(folder, "rated.json", json.dumps(record)))
    assert f"rating: {template}: rated 1000000000000.0, the library has " in line


def test_a_plan_whose_set_up_or_library_is_gone_is_not_explained(folder: Path, plan: Path) -> None:
    record = json.loads(plan.read_text())
    limits = record["limits"]
    for field, value in (("setup", "gone.yaml"), ("library", "0123456789abcdef")):
        other = written(folder, "other-limits.json", json.dumps(record | {"limits": limits | {field: value}}))
        line = refused("explain", "plan", other)
        assert f"other-limits.json: limits.{field}: '{value}'" in line
        assert "expected" in line
