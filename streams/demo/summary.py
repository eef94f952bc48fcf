"""What came of a demo: its log exported, its story told, and everything decided again."""

import json
from collections.abc import Iterable

from rich.console import Console

from schemas import topics
from schemas.events import NodeReported
from schemas.settings import Settings
from streams import log, logfile
from streams.audit import replay_from
from streams.demo.load import Tally
from streams.log import Entry
from streams.story import Story


async def sum_up(settings: Settings, passed_s: float, tally: Tally | None) -> dict[str, object]:
    """The summary of the run whose log is on these topics; the log is written beside it."""
    entries = [entry async for entry in log.read(settings.kafka, settings.topic(topics.CONTROL))]
    exported = settings.state_dir / "control.jsonl"
    with exported.open("w") as file:
        logfile.write(file, entries)
    story = Story()
    for entry in entries:
        story.follow(entry.record())
    report = await replay_from(settings, None)
    events = [topics.TELEMETRY, topics.AVAILABILITY, topics.PRICES, topics.FLEET]
    return {
        "seconds": round(passed_s, 1),
        "events": sum([await log.length(settings.kafka, settings.topic(topic)) for topic in events]),
        **story.summary().model_dump(mode="json"),
        **({} if tally is None else {**tally.summary(), "start_s": starts(entries)}),
        "replay_equal": report.equal,
        "replay_difference": report.difference,
        "log": str(exported),
    }


def starts(entries: Iterable[Entry]) -> list[float]:
    """Measured seconds of each start of an engine, in the order in which they became ready."""
    seen: dict[tuple[object, ...], float] = {}
    for entry in entries:
        event = entry.record().event
        if isinstance(event, NodeReported):
            for stage in event.report.stages:
                key = (stage.instance, stage.attempt, stage.stage, stage.rank)
                if stage.start_s is not None and key not in seen:
                    seen[key] = round(stage.start_s, 1)
    return list(seen.values())


def show(console: Console, summary: dict[str, object]) -> None:
    console.rule("summary")
    for name, value in summary.items():
        text = f"{len(value)} changes" if name == "usd_per_hour" and isinstance(value, list) else str(value)
        console.print(f"{name:>20}  {text}", markup=False, highlight=False)


def show_json(summary: dict[str, object]) -> None:
    Console(soft_wrap=True, emoji=False).print(json.dumps(summary), markup=False, highlight=False)
