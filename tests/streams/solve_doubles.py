"""Benches that solve badly, by name, for the worker process (streams/solve_worker.py)."""

import os
import time

from schemas.problems import Answer, Problem
from streams.solve_worker import Bench, SolveError
from tests.streams.doubles import greedy


def steady() -> Bench:
    return Bench("steady", proven)


def proven(problem: Problem) -> Answer:
    """The greedy answer, said to be the best, which for one kind of node it is."""
    answer = greedy(problem)
    return answer.model_copy(update={"bound_usd_per_hour": answer.usd_per_hour})


def moody() -> Bench:
    """Does what the problem's id asks for."""

    def solve(problem: Problem) -> Answer:
        match problem.id:
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
            case "cheat":
                return proven(problem).model_copy(update={"chosen": (), "unmet": ()})
        return proven(problem)

    return Bench("moody", solve)


def broken() -> Bench:
    raise OSError("no catalog")
