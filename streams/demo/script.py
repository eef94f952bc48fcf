"""What a demo plays: its files in schemas/data/demo, and what runs its models.

| engine | data | demand |
| --- | --- | --- |
| simulated | `schemas/data/demo/` | recorded traffic, an hour in two minutes |
| vllm | `schemas/data/demo/vllm/` | what the router reports of the clients that `load.yaml` describes |
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agents.broker import DEFAULT_CACHE
from schemas.settings import NodeSettings

DATA = Path(__file__).parents[2] / "schemas" / "data" / "demo"

EngineName = Literal["simulated", "vllm"]


@dataclass(frozen=True)
class Script:
    """One demo's input. Files that are not there play no part."""

    engine: EngineName
    folder: Path
    environment: dict[str, str]
    """Settings that no file can hold: they depend on where this checkout is."""
    model: Path | None = None
    """The folder of the model that real engines serve."""

    @property
    def settings(self) -> Path:
        return self.folder / "settings.yaml"

    @property
    def static(self) -> Path:
        """Nodes whose agents already run."""
        return self.folder / "static.yaml"

    @property
    def feeds(self) -> Path:
        return self.folder / "feeds.yaml"

    @property
    def local(self) -> Path | None:
        """The stock of nodes that are started when a plan claims them."""
        return self._if_there("local.yaml")

    @property
    def load(self) -> Path | None:
        """What clients ask of the router; without it there is no router either."""
        return self._if_there("load.yaml")

    def _if_there(self, name: str) -> Path | None:
        path = self.folder / name
        return path if path.is_file() else None


SIMULATED = Script("simulated", DATA, {})


def script_for(engine: str, given: NodeSettings, cache: Path = DEFAULT_CACHE) -> Script:
    """The script of a demo on these engines.

    Args:
        given: its `vllm` command and its model `tiny`, where they are set; else what `make vllm` installed.

    Raises:
        ValueError: there are no such engines.
        FileNotFoundError: vLLM or the tiny model is not there.
    """
    if engine == "simulated":
        return SIMULATED
    if engine != "vllm":
        raise ValueError(f"--engine: {engine!r}, expected simulated or vllm")
    folder = DATA / "vllm"
    command = given.vllm or cache / "vllm" / "bin" / "vllm"
    model = given.models.get("tiny", cache / "vllm-models" / "tiny")
    for path in (command, model / "config.json"):
        if not path.is_file():
            raise FileNotFoundError(
                f"--engine vllm: {path} is not there; `make vllm` installs vLLM and a model"
            )
    return Script(
        "vllm",
        folder,
        {
            "CORAL_CATALOG": str(folder / "catalog.yaml"),
            "CORAL_EFFICIENCIES": str(folder / "efficiencies.yaml"),
            "CORAL_NODE__VLLM": str(command.absolute()),
            "CORAL_NODE__MODELS": json.dumps({"tiny": str(model.absolute())}),
        },
        model.absolute(),
    )
