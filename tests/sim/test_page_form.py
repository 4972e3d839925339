"""A simulated page has the form of the recorded page of the same version."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.utils import floatToGoString

from tests.sim.pages import VERSIONS, buckets, capture, family_types, samples, shapes
from ufwatch.sim.engine import SimEngine
from ufwatch.sim.exposition import labels, number
from ufwatch.sim.layout import page_layout, versions
from ufwatch.sim.scenario import SCENARIOS, Scenario

# The recorded servers ran with --max-model-len 512, which the edges of token histograms depend on.
RECORDED = replace(
    SCENARIOS["steady"],
    max_model_len=512,
    num_gpu_blocks=48,
    prefix_tokens=64,
    prompt_tokens=(8, 64),
    output_tokens=(8, 32),
)


def page_of(scenario: Scenario, version: str, at: float = 30.0) -> str:
    engine = SimEngine(scenario)
    engine.advance(at)
    return engine.page(version).decode()


def scenario_of(version: str) -> Scenario:
    # The one recorded with --kv-cache-metrics.
    return replace(RECORDED, kv_cache_metrics=version == "0.32.0")


def test_every_recorded_version_is_known() -> None:
    assert versions() == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_families_types_and_order_are_those_recorded(version: str) -> None:
    simulated = family_types(page_of(scenario_of(version), version))
    assert list(simulated.items()) == list(family_types(capture(f"{version}-load")).items())


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_samples_labels_and_edges_are_those_recorded(version: str) -> None:
    assert shapes(page_of(scenario_of(version), version)) == shapes(capture(f"{version}-load"))


def test_v0_samples_are_those_recorded_but_for_the_reasons_used() -> None:
    simulated, recorded = shapes(page_of(RECORDED, "0.8.5")), shapes(capture("0.8.5-load"))
    assert {name for name, _ in simulated ^ recorded} == {"vllm:request_success_total"}


def test_idle_v0_shows_only_what_was_set_once() -> None:
    page = page_of(replace(RECORDED, arrivals_per_second=0.0), "0.8.5")
    assert "vllm:cache_config_info" in family_types(page)
    assert not any(kind in ("counter", "histogram") for kind in family_types(page).values())


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_an_idle_server_has_the_recorded_form(version: str) -> None:
    page = page_of(replace(scenario_of(version), arrivals_per_second=0.0), version)
    assert shapes(page) == shapes(capture(f"{version}-idle"))
    assert list(family_types(page).items()) == list(family_types(capture(f"{version}-idle")).items())


def test_two_engines_have_the_recorded_form() -> None:
    page = page_of(replace(RECORDED, engines=2), "0.32.0")
    assert shapes(page) == shapes(capture("0.32.0-load-dp2"))
    assert list(family_types(page)) == list(family_types(capture("0.32.0-load-dp2")))


def test_two_api_servers_have_the_recorded_multiprocess_form() -> None:
    recorded = capture("0.32.0-load-apiservers2")
    # That server ran with finer edges for the inter-token latency, and was also asked for its models.
    edges = tuple(edge for edge, _ in buckets(samples(recorded), "vllm:inter_token_latency_seconds")[:-1])
    simulated = page_of(replace(RECORDED, api_servers=2, itl_edges=edges), "0.32.0")

    def comparable(text: str) -> set[object]:
        return {shape for shape in shapes(text) if not shape[0].startswith("http_")}

    assert comparable(simulated) == comparable(recorded)
    assert not any(name.endswith("_created") or name.startswith("process_") for name in family_types(simulated))
    order = {kind: position for position, kind in enumerate(("summary", "histogram", "counter", "gauge"))}
    kinds = [order[kind] for kind in family_types(simulated).values()]
    assert kinds == sorted(kinds)


def test_no_stats_leaves_no_engine_family() -> None:
    page = page_of(replace(RECORDED, log_stats=False), "0.32.0")
    assert set(family_types(page)) == set(family_types(capture("0.32.0-load-nostats")))
    assert "vllm:" not in page


def test_speculation_has_the_recorded_form() -> None:
    assert shapes(page_of(replace(RECORDED, spec_tokens=3), "0.32.0")) == shapes(capture("0.32.0-load-specdecode"))


def test_custom_edges_replace_the_defaults() -> None:
    page = page_of(replace(RECORDED, itl_edges=(0.02, 0.03)), "0.32.0")
    lines = [line for line in page.splitlines() if line.startswith("vllm:inter_token_latency_seconds_bucket")]
    assert [line.split('le="')[1].split('"')[0] for line in lines] == ["0.02", "0.03", "+Inf"]


def test_a_version_between_two_known_ones_has_the_older_form() -> None:
    assert page_layout("0.15.1").families == page_layout("0.13.0").families
    with pytest.raises(ValueError, match="oldest"):
        page_layout("0.4.0")


def test_v0_has_no_data_parallelism() -> None:
    with pytest.raises(ValueError, match="V0"):
        page_of(SCENARIOS["two_engines"], "0.8.5", at=0.0)


@pytest.mark.parametrize(
    "value", [0, 1, 17.0, 0.1, 1e-7, 999999.0, 1e6, 1234567.0, 1.796090628829e9, 2.1e10, 1e21, 0.30000000000000004]
)
def test_numbers_are_written_as_prometheus_client_writes_them(value: float) -> None:
    assert number(value) == floatToGoString(value)  # type: ignore[no-untyped-call]


def test_a_model_name_may_hold_anything() -> None:
    name = 'a,b="c"\\{}'
    page = samples(page_of(replace(RECORDED, model_name=name), "0.32.0"))
    assert {dict(pairs)["model_name"] for sample, pairs in page if sample.startswith("vllm:num_")} == {name}
    assert len(buckets(page, "vllm:inter_token_latency_seconds")) == 20


def test_labels_are_sorted_and_escaped() -> None:
    assert labels([("b", 'say "hi"\\\n'), ("a", "1")]) == '{a="1",b="say \\"hi\\"\\\\\\n"}'
    assert labels([]) == ""
