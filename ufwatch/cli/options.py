"""The flags that are alike in every verb, and the parser that reports a mistake in one line.

Values stay as typed here: :mod:`ufwatch.precedence` converts and checks them together with the environment's.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from ufwatch.config import DEFAULT_INTERVAL_SECONDS, DEFAULT_PORT
from ufwatch.precedence import LOG_FORMATS, LOG_LEVELS, Flags

__all__ = [
    "Flags",
    "Parser",
    "add_log_options",
    "add_output_options",
    "add_probe_options",
    "add_serve_options",
    "add_state_options",
    "add_target_options",
    "flags",
]


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a mistake with one line and exit code 2, and knows no abbreviations.

    An abbreviated flag in a unit file would change its meaning with the next flag we add.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())
        self.exit(2, f"{self.prog}: {line}; see {self.prog} --help\n")


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says which servers are read, how often and how they are reached."""
    group = parser.add_argument_group("targets")
    group.add_argument(
        "--target",
        action="append",
        dest="targets",
        metavar="[NAME=]URL",
        help="an inference server, such as http://127.0.0.1:8000; repeatable (UFWATCH_TARGETS, comma separated)",
    )
    group.add_argument("--config", metavar="FILE", help="configuration file (UFWATCH_CONFIG)")
    group.add_argument(
        "--interval",
        metavar="DURATION",
        help=f"time between scrapes, 1s to 60s; default {DEFAULT_INTERVAL_SECONDS:g}s (UFWATCH_INTERVAL)",
    )
    group.add_argument("--model", metavar="NAME", help="model name of the targets, for series while one is down")
    group.add_argument("--ca-file", metavar="FILE", help="certificates to verify https targets by (UFWATCH_CA_FILE)")
    group.add_argument("--insecure", action="store_true", help="verify no certificate (UFWATCH_INSECURE)")
    group.add_argument(
        "--api-key-file", metavar="FILE", help="file that holds the API key to send (UFWATCH_API_KEY_FILE)"
    )
    group.add_argument("--basic-auth-file", metavar="FILE", help="file that holds one line user:password")
    group.add_argument("--no-gpu", action="store_true", help="do not read GPUs")
    group.add_argument("--no-gpm", action="store_true", help="leave the GPUs' performance counters to profilers")


def add_serve_options(parser: argparse.ArgumentParser, *, port: int = DEFAULT_PORT) -> None:
    """Adds what says where we serve. ``port`` is the verb's default, for the help alone."""
    group = parser.add_argument_group("serving")
    group.add_argument("--host", help="address to serve on; default 127.0.0.1 (UFWATCH_HOST)")
    group.add_argument("--port", help=f"port to serve on; default {port} (UFWATCH_PORT)")
    group.add_argument(
        "--web.config.file",
        "--web-config-file",
        dest="web_config_file",
        metavar="FILE",
        help="TLS and basic auth, in the exporter-toolkit's format (UFWATCH_WEB_CONFIG_FILE)",
    )


def add_state_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says where the agent keeps what outlives it."""
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="keep error budgets and what was learned there; default: in memory alone (UFWATCH_STATE_DIR)",
    )


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says how our own log is written."""
    group = parser.add_argument_group("log")
    group.add_argument(
        "--log-level", metavar="LEVEL", help=f"{', '.join(LOG_LEVELS)}; default info (UFWATCH_LOG_LEVEL)"
    )
    group.add_argument(
        "--log-format", metavar="FORMAT", help=f"{' or '.join(LOG_FORMATS)}; default text (UFWATCH_LOG_FORMAT)"
    )


def add_probe_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says where the traces of probes go."""
    group = parser.add_argument_group("probes")
    group.add_argument(
        "--otlp",
        metavar="ENDPOINT",
        help="send the traces of the probes in the configuration there (OTEL_EXPORTER_OTLP_ENDPOINT)",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says how a result is printed."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def flags(namespace: argparse.Namespace) -> Flags:
    """Returns what was typed; a flag that the verb does not have counts as not given."""
    typed = vars(namespace)
    return Flags(
        targets=tuple(typed.get("targets") or ()),
        config=typed.get("config"),
        json=bool(typed.get("json")),
        interval=typed.get("interval"),
        host=typed.get("host"),
        port=typed.get("port"),
        web_config_file=typed.get("web_config_file"),
        state_dir=typed.get("state_dir"),
        otlp=typed.get("otlp"),
        ca_file=typed.get("ca_file"),
        insecure=bool(typed.get("insecure")),
        api_key_file=typed.get("api_key_file"),
        basic_auth_file=typed.get("basic_auth_file"),
        model=typed.get("model"),
        no_gpu=bool(typed.get("no_gpu")),
        no_gpm=bool(typed.get("no_gpm")),
        log_level=typed.get("log_level"),
        log_format=typed.get("log_format"),
    )
