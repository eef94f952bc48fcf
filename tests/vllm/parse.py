"""Runs in vLLM's environment: command lines through vLLM's own parser and configuration check.

Reads from standard input a list of {argv, environment}; its last line is a list as long, an error's text or
null each. One process for all: importing vLLM takes longer than a hundred checks.
"""

import json
import os
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

PARSER = make_arg_parser(FlexibleArgumentParser())
INHERITED = dict(os.environ)


def wrong(launch: dict[str, Any]) -> str | None:
    os.environ.clear()
    os.environ.update(INHERITED | launch["environment"])
    _, serve, model, *flags = launch["argv"]
    assert serve == "serve"
    try:
        args = PARSER.parse_args([model, *flags])
        args.model = args.model_tag  # as `vllm serve` does
        validate_parsed_serve_args(args)
        AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=args.headless)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it says is the answer
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    told = [wrong(launch) for launch in json.load(sys.stdin)]
    print()
    print(json.dumps(told))
