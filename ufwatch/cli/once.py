"""``ufwatch once``: a few samples, then the signals over the time between the first and the last."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ufwatch.cli import sampling
from ufwatch.cli.options import flags
from ufwatch.errors import ConfigError
from ufwatch.render.table import targets_table

DEFAULT_SAMPLES = 2


def configure(parser: argparse.ArgumentParser) -> None:
    sampling.configure(parser)
    parser.add_argument(
        "--samples", metavar="N", default=str(DEFAULT_SAMPLES), help=f"how often to look; default {DEFAULT_SAMPLES}"
    )


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 when every target was up at the last sample, otherwise 2."""
    given = flags(args)
    samples = sample_count(args.samples)
    document = sampling.look_at(given, env, samples=samples, look=lambda agent: agent.readings())
    if given.json:
        sampling.print_json(document)
    else:
        print(targets_table(document["targets"]), end="")
    return 0 if document["targets"] and all(target["up"] for target in document["targets"]) else 2


def sample_count(text: str) -> int:
    """A whole number from 1 to 1000. Raises ConfigError."""
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ConfigError("ufwatch", [f"--samples: {text!r} is not a whole number from 1 to 1000"])
    return int(text)
