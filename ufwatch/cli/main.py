"""``ufwatch VERB``: finds the verb's module, and lets no traceback reach the user."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence

import ufwatch
from ufwatch.cli.options import Parser
from ufwatch.errors import ConfigError, UfwatchError

VERBS = {
    "run": "watch targets and serve /metrics until stopped",
    "once": "look at targets a few times and print the signals",
    "signals": "list what each target offers and from which source",
    "slo": "show what is left of each error budget, or check and expand a file of objectives",
    "doctor": "say what keeps each signal from being exact, and what would fix it",
    "alerts": "list the alerts, write their rule files, and lint your own",
    "dashboards": "list, write or check the Grafana boards",
    "trace": "time requests layer by layer, from the name to the last token, and say which layer is at fault",
    "demo": "run the whole agent on a simulated vLLM and a recorded H200",
}
"""Each verb is the module of its name beside this one, with ``configure(parser)`` and ``execute(args, env) -> int``."""


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Returns the exit code: 0 pass, 1 threshold breached, 2 could not measure or bad input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A label may hold any character and a terminal's encoding only some; that is no reason to show nothing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _execute(list(sys.argv[1:] if argv is None else argv), dict(os.environ) if env is None else env)
        finally:
            # What cannot be written shows here, and not while the interpreter winds up, where nothing can catch it.
            sys.stdout.flush()
    except UfwatchError as error:
        text = str(error)
        print(text if isinstance(error, ConfigError) else f"ufwatch: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`ufwatch once | head`); say nothing more on a closed pipe.
        _discard_output()
        return 0
    except OSError as error:
        print(f"ufwatch: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        _discard_output()
        return 2


def _execute(words: list[str], env: Mapping[str, str]) -> int:
    parser = Parser(prog="ufwatch", description="Observability and SLO agent for LLM inference.")
    parser.add_argument("--version", action="version", version=f"ufwatch {ufwatch.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, text in VERBS.items():
        sub = verbs.add_parser(verb, help=text, description=text[0].upper() + text[1:] + ".")
        # Only the verb that is asked for is imported: `ufwatch once` must not pay for what `demo` needs.
        if words[:1] == [verb]:
            importlib.import_module(f"ufwatch.cli.{verb}").configure(sub)
    args = parser.parse_args(words)
    code: int = importlib.import_module(f"ufwatch.cli.{args.verb}").execute(args, env)
    return code


def _discard_output() -> None:
    """What is still buffered goes nowhere, or the interpreter would complain of it at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
