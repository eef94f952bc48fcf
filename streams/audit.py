"""Export and replay, as the command line has them."""

import sys
from pathlib import Path

from agents.bus import Bus
from schemas import topics
from schemas.settings import Settings
from streams import log, logfile
from streams.replay import Report, replay, replay_live


async def export(settings: Settings, output: Path | None) -> int:
    """Write what the control log holds as of now; to standard output without a file. Returns the records."""
    entries = [entry async for entry in log.read(settings.kafka, settings.topic(topics.CONTROL))]
    if output is None:
        return logfile.write(sys.stdout, entries)
    with output.open("w") as file:
        return logfile.write(file, entries)


async def replay_from(settings: Settings, file: Path | None) -> Report:
    """Replay an exported log, or the live topics without a file.

    Raises:
        OSError, logfile.LogFileError: the file cannot be read, or a line of it is no record.
        log.LogTruncatedError: records that are needed are no longer kept.
        ValueError: there are no records.
    """
    if file is not None:
        with file.open() as lines:
            report = replay(logfile.read(lines))
    else:
        async with Bus(settings.kafka, settings.topic_prefix, "replay") as bus:
            report = await replay_live(bus)
    if report.records == 0:  # "equal" would be true, and worth nothing
        raise ValueError(f"{file or settings.topic(topics.CONTROL)}: no records to replay")
    return report
