"""Makes ready what ``plugin_vllm_gpu.py`` starts, on a machine without a package index: vLLM from its packed pieces,
the plugin and its witness as an installer would leave them, the interposer, a model that needs no weights.
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLUGIN, TORCH, PINNED = (ROOT / "exporters" / name for name in ("vllm", "torch", "pinned"))
WITNESS = Path(__file__).with_name("ufwatch_witness.py")
WITNESS_POINTS = {
    "vllm.general_plugins": {"ufwatch_witness": "ufwatch_witness:register"},
    "vllm.stat_logger_plugins": {"ufwatch_witness": "ufwatch_witness:WitnessLogger"},
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "initializer_range": 0.02,
    "vocab_size": 2000,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}


def unpack(site: Path, pack: Path) -> None:
    """``vllm_gpu_unpack.py`` of the shared tools, its three pieces at once (lzma lets other threads run)."""
    site.mkdir(parents=True, exist_ok=True)
    whole = site.parent / "C.xz"
    with whole.open("wb") as out:
        for part in (pack / "a" / "C.xz.0", pack / "b" / "C.xz.1"):
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, out)

    def files() -> None:
        with tarfile.open(pack / "b" / "site.tar.xz") as archive:
            archive.extractall(site, filter="fully_trusted")

    def library(packed: Path, name: str) -> None:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        with lzma.open(packed) as source, (site / name).open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)

    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(files),
            pool.submit(library, whole, "vllm/_C_stable_libtorch.abi3.so"),
            pool.submit(library, pack / "b" / "fa3.xz", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"),
        ]
        for job in jobs:
            job.result()
    whole.unlink()
    for wheel in sorted(
        (pack / "c" / "site").glob("*.whl")
    ):  # what the index has come to need since the pack was written
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def install_plugin(site: Path, pack: Path, python: str) -> str:
    """ufwatch-vllm into ``site``; returns how. A carried wheel is taken only while it holds the tree's own files."""
    wheels = sorted((pack / "c").glob("ufwatch_vllm-*.whl"))
    if wheels and _same(wheels[-1]):
        command = [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--no-compile",
            "--target",
            str(site),
        ]
        done = subprocess.run([*command, str(wheels[-1])], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            return f"wheel {wheels[-1].name}"
    shutil.copytree(PLUGIN / "ufwatch_vllm", site / "ufwatch_vllm", dirs_exist_ok=True, ignore=_no_cache)
    if not (site / "ufwatch_vllm" / "observers" / "textfile.py").is_file():  # the link did not travel
        shutil.rmtree(site / "ufwatch_vllm" / "observers", ignore_errors=True)
        shutil.copytree(TORCH / "ufwatch_torch", site / "ufwatch_vllm" / "observers", ignore=_no_cache)
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    describe(site, "ufwatch_vllm", str(project.get("version", "0")), project["entry-points"])
    return "copied from the tree"


def install_witness(site: Path) -> None:
    shutil.copy(WITNESS, site / WITNESS.name)
    describe(site, "ufwatch_witness", "0", WITNESS_POINTS)


def describe(site: Path, name: str, version: str, points: dict[str, dict[str, str]]) -> None:
    """What an installer would leave: the entry points by which vLLM finds a plugin."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    distribution = name.replace("_", "-")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
    )
    groups = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) for group, found in points.items())
    (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")


def build_interposer(work: Path, pack: Path) -> tuple[Path, str]:
    """The interposer's library, and how it came: built there, else carried. Raises RuntimeError with neither."""
    said = "no exporters/pinned"
    if PINNED.is_dir():
        folder = work / "pinned"
        shutil.copytree(PINNED, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.so", "*.o", "*.md"))
        for command in (["make"], ["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", "ufwatch_pinned.so"]):
            sources = [path.name for path in sorted(folder.glob("*.c"))] + ["-ldl"] if command[0] == "cc" else []
            try:
                done = subprocess.run(
                    [*command, *sources], cwd=folder, capture_output=True, text=True, timeout=60, check=False
                )
            except OSError as error:
                said = repr(error)
                continue
            built = sorted(folder.rglob("*.so"))
            if done.returncode == 0 and built:
                return built[0], " ".join(command[:1]) + " there"
            said = (done.stderr or done.stdout)[-300:]
    carried = sorted((pack / "c").glob("*.so"))
    if not carried:
        raise RuntimeError(f"no interposer: {said}")
    return carried[0], f"carried; building said: {said}"


def make_model(folder: Path, tokenizer: Path, layers: int | None = None) -> Path:
    """A Llama without weights (``--load-format dummy``) and a byte-level tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in tokenizer.iterdir():
        shutil.copy(path, folder / path.name)
    small: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": layers,
    }
    (folder / "config.json").write_text(json.dumps(LLAMA | (small if layers else {}), indent=1), encoding="utf-8")
    return folder


def _no_cache(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def _same(wheel: Path) -> bool:
    """Whether the wheel's modules are the tree's, byte for byte and none missing."""
    with zipfile.ZipFile(wheel) as archive:
        held = {n: archive.read(n) for n in archive.namelist() if n.startswith("ufwatch_vllm/") and n.endswith(".py")}
    tree: dict[str, bytes] = {}
    for top, prefix in ((PLUGIN / "ufwatch_vllm", "ufwatch_vllm"), (TORCH / "ufwatch_torch", "ufwatch_vllm/observers")):
        for path in top.rglob("*.py"):
            tree[f"{prefix}/{path.relative_to(top).as_posix()}"] = path.read_bytes()
    return held == tree
