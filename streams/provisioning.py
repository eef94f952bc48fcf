"""The provisioner process: which provisioners serve this fleet, and how a local node is started."""

import asyncio
import logging
import sys
from contextlib import suppress
from pathlib import Path

from aiokafka.errors import KafkaError

from agents.bus import Bus
from agents.lifespan import ending
from agents.provision import Provisioner
from agents.provision_local import LocalCloud, LocalProvisioner
from agents.provision_run import run_provisioner
from agents.provision_static import Inventory, StaticProvisioner
from schemas.settings import Settings
from schemas.yamlfile import load_yaml

log = logging.getLogger(__name__)

RETRY_S = 5.0


def run(settings: Settings, *, static: Path | None, local: Path | None, time_scale: float) -> None:
    """Serve the plans' claims until told to end (`agents.lifespan`); nodes stay as they are. Blocks.

    Raises:
        OSError, ValueError, yaml.YAMLError: an inventory or a stock is not there or is none.
    """
    provisioners: list[Provisioner] = []
    if static is not None:
        inventory = load_yaml(Inventory, static)
        provisioners.append(StaticProvisioner(inventory, settings.state_dir / "static.json", settings.fleet))
    if local is not None:
        provisioners.append(local_cloud(settings, local, time_scale))
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(settings, provisioners))


def local_cloud(settings: Settings, stock: Path, time_scale: float) -> LocalProvisioner:
    """The local cloud of this fleet, with what it had started before.

    Raises:
        OSError, ValueError, yaml.YAMLError: as `run`.
    """
    state_dir = settings.state_dir.resolve()
    command = [sys.executable, "-m", "streams.cli", "node", "--time-scale", str(time_scale)]
    cloud = load_yaml(LocalCloud, stock)
    return LocalProvisioner(cloud, command, state_dir / "local", state_dir / "nodes", settings.fleet)


async def _serve(settings: Settings, provisioners: list[Provisioner]) -> None:
    serving = asyncio.current_task()
    if serving is None:
        raise RuntimeError("runs as a task")
    for number in ending():
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    while True:
        try:
            async with Bus(settings.kafka, settings.topic_prefix, "provision") as bus:
                await run_provisioner(bus, provisioners)
        except* KafkaError as errors:
            # Nodes stay as they are meanwhile; all else begins anew, as after a restart.
            log.warning("Kafka failed, next try in %g s: %s", RETRY_S, errors.exceptions[0])
        await asyncio.sleep(RETRY_S)
