"""Benches that solve badly, by name, for the worker process (streams/solve_worker.py)."""

import os
import time

from schemas.problems import Answer, Problem
from streams.solve_worker import Bench, Better, SolveError
from tests.streams.doubles import greedy


def steady() -> Bench:
    return Bench("steady", lambda problem, _better: proven(problem))


def proven(problem: Problem) -> Answer:
    """The greedy answer, said to be the best, which for one kind of node it is."""
    answer = greedy(problem)
    return answer.model_copy(update={"bound_usd_per_hour": answer.usd_per_hour})


def cheated(problem: Problem) -> Answer:
    """Serves nothing, and leaves nothing unmet."""
    return proven(problem).model_copy(update={"chosen": (), "unmet": ()})


def moody() -> Bench:
    """Does what the problem's id asks for, word by word (`tell-sleep`), and answers."""

    def solve(problem: Problem, better: Better) -> Answer:
        words = problem.id.split("-")
        for word in words:
            _act(word, problem, better)
        return cheated(problem) if "cheat" in words else proven(problem)

    return Bench("moody", solve)


def _act(word: str, problem: Problem, better: Better) -> None:
    match word:
        case "tell":
            better(greedy(problem).model_copy(update={"gap": 1.0}))
        case "lie":
            better(cheated(problem))
        case "sleep":
            time.sleep(3600)  # HiGHS #2226: a limit that is not kept
        case "exit":
            os._exit(3)
        case "raise":
            raise ZeroDivisionError("no cost")
        case "decline":
            raise SolveError("cannot be put")
        case "print":
            os.write(1, b"Running HiGHS\n")


def broken() -> Bench:
    raise OSError("no catalog")
