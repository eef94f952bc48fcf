"""When an engine counts as dead: by looks and checks alone, on a clock of our own."""

from hypothesis import given
from hypothesis import strategies as st

from agents.vitals import CHECK_EVERY_S, Health, Metrics, Vitals

STUCK_S = 30.0


def metrics(tokens: int) -> Metrics:
    return Metrics(running=1, waiting=0, tokens=tokens)


class Watch:
    """Looks every second; a check that is wanted is asked, and comes back if `ranks` says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.vitals = Vitals(STUCK_S, self.now)
        self.checks = 0
        self.tokens = 0
        self.open = False
        self.last_sign = self.now

    def second(self, *, health: Health = "well", new: int = 0, ranks: bool | None = True) -> str | None:
        """
        Args:
            new: tokens since the last look.
            ranks: what a check comes back with at once; None leaves it open.
        """
        self.now += 1.0
        self.tokens += new
        if new:
            self.last_sign = self.now
        dead = self.vitals.look(health, metrics(self.tokens) if health == "well" else None, self.now)
        if self.vitals.wants_check:
            self.vitals.asked()
            self.checks += 1
            self.open = True
        if self.open and ranks is not None:
            self.vitals.answered(ranks)
            self.open = False
            if ranks:
                self.last_sign = self.now
        return dead

    def seconds(self, count: int, **given: object) -> list[str | None]:
        return [self.second(**given) for _ in range(count)]  # type: ignore[arg-type]


def test_an_idle_engine_is_asked_now_and_then_and_lives() -> None:
    watch = Watch()
    assert watch.seconds(600) == [None] * 600
    assert 600 / CHECK_EVERY_S - 2 <= watch.checks <= 600 / CHECK_EVERY_S + 2


def test_a_busy_engine_is_not_asked() -> None:
    """A check would drain its pipeline."""
    watch = Watch()
    assert watch.seconds(600, new=5, ranks=False) == [None] * 600
    assert watch.checks == 0


def test_a_dead_rank_of_an_idle_engine_is_found() -> None:
    watch = Watch()
    watch.seconds(60)
    found = watch.seconds(60, ranks=None)
    assert STUCK_S - CHECK_EVERY_S <= found.index("no token and no answer of all ranks for 30 s") <= STUCK_S
    assert watch.checks <= 60 / CHECK_EVERY_S + 1  # never more than one at a time


def test_a_failed_check_alone_is_no_death() -> None:
    """It may have had to wait behind a long step."""
    watch = Watch()
    for _ in range(10):
        assert watch.seconds(25, ranks=False) == [None] * 25
        assert watch.second(new=1, ranks=False) is None


def test_a_check_that_comes_back_late_is_a_sign_of_life() -> None:
    watch = Watch()
    watch.seconds(10)
    assert watch.seconds(20, ranks=None) == [None] * 20
    assert watch.seconds(29, ranks=True) == [None] * 29


def test_what_says_so_is_dead_at_once() -> None:
    assert Watch().second(health="dead") == "its /health says that it is dead"
    assert Watch().second(health="refused") == "nothing listens where it served"


def test_one_that_does_not_answer_gets_its_time() -> None:
    """Its server may be busy with a long prompt."""
    watch = Watch()
    watch.seconds(5, new=1)
    found = watch.seconds(40, health="silent", ranks=None)
    assert found[: int(STUCK_S) - 1] == [None] * (int(STUCK_S) - 1)
    assert found[int(STUCK_S)] is not None


def test_time_in_which_nobody_looked_is_no_silence() -> None:
    watch = Watch()
    watch.seconds(4)
    watch.second(ranks=None)
    watch.now += 3600.0  # SIGSTOP and SIGCONT
    assert watch.seconds(20, ranks=None) == [None] * 20


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([True, False, None])), max_size=120))
def test_it_dies_only_after_that_long_without_a_sign(seconds: list[tuple[int, bool | None]]) -> None:
    watch = Watch()
    for new, ranks in seconds:
        before = watch.last_sign
        if watch.second(new=new, ranks=ranks) is not None:
            assert new == 0
            assert watch.now - before >= STUCK_S
