"""Reading pages in tests with prometheus_client's parser, the oracle of the text format."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

CAPTURES = Path(__file__).parent.parent / "captures" / "vllm"
VERSIONS = ("0.8.5", "0.9.2", "0.10.2", "0.11.2", "0.13.0", "0.16.0", "0.20.2", "0.24.0", "0.28.0", "0.32.0")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def capture(name: str) -> str:
    return (CAPTURES / f"metrics-{name}.prom").read_text(encoding="utf-8")


def samples(text: str) -> Samples:
    """Every sample of a page by name and labels; a sample that occurs twice is an error."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} occurs twice"
            found[key] = sample.value
    return found


def family_types(text: str) -> dict[str, str]:
    """Name and type of every family, in page order, as the TYPE lines say."""
    lines = [line.split(" ") for line in text.splitlines() if line.startswith("# TYPE ")]
    return {name: kind for _, _, name, kind in lines}


def shapes(text: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Sample names with their labels; of labels whose value is the server's own business only the name."""
    own = ("model_name",)
    free = "vllm:cache_config_info"
    return {
        (name, frozenset((label, "" if label in own or name == free else value) for label, value in pairs))
        for name, pairs in samples(text)
    }


def value(page: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of a name that carry these labels."""
    wanted = set(labels.items())
    return sum(number for (sample, pairs), number in page.items() if sample == name and wanted <= pairs)


def buckets(page: Samples, family: str, engine: str = "0") -> list[tuple[float, float]]:
    """Edge and cumulative count of a histogram, in order."""
    found = []
    for (name, pairs), number in page.items():
        labels = dict(pairs)
        if name == f"{family}_bucket" and labels.get("engine", "0") == engine:
            found.append((float(labels["le"]), number))
    return sorted(found)
