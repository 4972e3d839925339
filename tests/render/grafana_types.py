"""Boards against the TypeScript types that Grafana publishes (npm: @grafana/schema): every key, and every enumeration.

``python -m tests.render.grafana_types DIR`` checks the five boards with the packages that npm has put into DIR:
``npm install --prefix DIR @grafana/schema@13.2.3 typescript@5``. No Grafana is started: what its components make of a
value that is allowed stays unseen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ufwatch.render.board import BoardSettings
from ufwatch.render.boards import files

_KINDS = {
    "timeseries": "timeseries",
    "stat": "stat",
    "state-timeline": "statetimeline",
    "table": "table",
    "heatmap": "heatmap",
}
_WITHOUT_FIELDS = ("stat",)
"""Kinds that publish no type for ``fieldConfig.defaults.custom``."""
_HEAD = """\
import type {{ Dashboard, Panel, RowPanel }} from '{types}/index';
{imports}
type Lit<T> = T extends string ? `${{T}}` : T extends number ? number : T extends Array<infer U> ? Array<Lit<U>>
  : T extends object ? {{ [K in keyof T]: Lit<T[K]> }} : T;
"""
_FOREIGN = ("expr", "titleFormat", "textFormat", "tagKeys", "step", "useValueForTime")
"""Keys of an annotation that are the Prometheus data source's and not of the schema."""


def complaints(packages: Path, texts: Mapping[str, str]) -> list[str]:
    """What the compiler says of the boards' JSON, by file name; nothing where all of it is allowed."""
    types = packages / "node_modules" / "@grafana" / "schema" / "dist" / "types"
    with tempfile.TemporaryDirectory(dir=packages) as folder:
        for name, text in texts.items():
            (Path(folder) / f"{name.removesuffix('.json')}.ts").write_text(_module(types, json.loads(text)))
        compiler = packages / "node_modules" / "typescript" / "bin" / "tsc"
        flags = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--moduleResolution", "bundler"]
        done = subprocess.run(
            ["node", str(compiler), *flags, "--module", "esnext", *sorted(map(str, Path(folder).glob("*.ts")))],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
    found = done.stdout.splitlines()
    return found if found or done.returncode == 0 else [done.stderr.strip()]


def _module(types: Path, board: dict[str, Any]) -> str:
    for annotation in board["annotations"]["list"]:
        for key in _FOREIGN:
            annotation.pop(key)
    imports = "\n".join(
        f"import type * as {module} from '{types}/raw/composable/{module}/panelcfg/x/types.gen';"
        for module in _KINDS.values()
    )
    parts = [_HEAD.format(types=types, imports=imports), _checked("board", board, "Dashboard")]
    for panel in board["panels"]:
        number = panel["id"]
        if panel["type"] == "row":
            parts.append(_checked(f"row{number}", panel, "RowPanel"))
            continue
        module = _KINDS[panel["type"]]
        parts.append(_checked(f"panel{number}", panel, "Panel"))
        parts.append(_checked(f"options{number}", panel["options"], f"{module}.Options"))
        if panel["type"] not in _WITHOUT_FIELDS:
            custom = panel["fieldConfig"]["defaults"]["custom"]
            parts.append(_checked(f"fields{number}", custom, f"{module}.FieldConfig"))
    return "\n".join(parts)


def _checked(name: str, value: object, kind: str) -> str:
    return f"export const {name} = {json.dumps(value, indent=1)} satisfies Lit<{kind}>;"


def main() -> int:
    """Prints what the compiler says; returns 1 if it says anything."""
    found = complaints(Path(sys.argv[1]).resolve(), files(BoardSettings()))
    print("\n".join(found) or "allowed by Grafana's published types")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
