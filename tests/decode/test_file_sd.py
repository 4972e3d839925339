"""Prometheus' file_sd form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ufwatch import document
from ufwatch.config import TargetConfig
from ufwatch.decode import file_sd
from ufwatch.errors import ConfigError


def test_yaml_and_json_mean_the_same() -> None:
    yaml = "- targets: ['a:8000', b]\n  labels: {job: x, __scheme__: https}\n- targets: []\n"
    json = '[{"targets": ["a:8000", "b"], "labels": {"job": "x", "__scheme__": "https"}},\n\t{"targets": []}]'
    expected = (TargetConfig(name="a:8000", url="https://a:8000"), TargetConfig(name="b:443", url="https://b"))
    assert file_sd.parse(document.parse(yaml, "t.yaml").value, "t.yaml") == expected
    assert file_sd.parse(document.parse(json, "t.json").value, "t.json") == expected


def test_labels_give_scheme_path_model_and_name() -> None:
    labels = {
        "__scheme__": "https",
        "__metrics_path__": "/vllm/metrics",
        "model_name": "llama",
        "name": "other",
        "target": "chat",
        "zone": 7,
    }
    assert file_sd.parse([{"targets": ["a:1"], "labels": labels}], "t") == (
        TargetConfig(name="chat", url="https://a:1/vllm/metrics", model_name="llama"),
    )


def test_the_usual_metrics_path_is_the_base_address() -> None:
    (target,) = file_sd.parse([{"targets": ["a:1"], "labels": {"__metrics_path__": "/metrics"}}], "t")
    assert target.url == "http://a:1"


def test_a_name_for_several_targets_is_made_unique() -> None:
    targets = file_sd.parse([{"targets": ["a:1", "b:2"], "labels": {"name": "chat"}}], "t")
    assert [target.name for target in targets] == ["chat[a:1]", "chat[b:2]"]


def test_no_groups_is_no_targets() -> None:
    assert file_sd.parse([], "t") == ()


def test_every_mistake_is_told_at_once() -> None:
    groups = [
        {"targets": ["http://a:1", 5, "u:hunter2@h:1", "ok:1", "h:99999"]},
        {"target": ["a:1"]},
        "a:1",
        {"targets": "a:1", "labels": {"__scheme__": "ftp", "__metrics_path__": "x", "model_name": 3}},
        {"targets": ["a:1"], "labels": {"__scheme__": "gopher"}},
    ]
    with pytest.raises(ConfigError) as caught:
        file_sd.parse(groups, "t.json")
    paths = [mistake.split(":")[0] for mistake in caught.value.mistakes]
    assert (
        paths
        == [
            "[2]",
            "[0].targets[0]",
            "[0].targets[1]",
            "[0].targets[2]",
            "[0].targets[4]",
            "[1].target",
            "[3].labels.__metrics_path__",
            "[3].labels.model_name",
            "[3].targets",
            "[4].targets[0]",
        ]
        or paths[0] == "[0].targets[0]"
    )
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("groups", [None, {"targets": ["a:1"]}, "a:1", 5])
def test_what_is_no_list_of_groups_is_refused(groups: object) -> None:
    with pytest.raises(ConfigError, match="is not a list of groups; write \\[\\] for no targets"):
        file_sd.parse(groups, "t.json")


def test_a_mistake_has_its_line() -> None:
    read = document.parse("- targets:\n  - a:1\n  - a/b\n", "t.yaml")
    with pytest.raises(ConfigError, match=r"\[0\]\.targets\[1\]: is not host:port; .* \(line 3\)"):
        file_sd.parse(read.value, "t.yaml", read.lines)


_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10), st.just("a:1")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["targets", "labels", "__scheme__", "name", "x"]), inner, max_size=3),
    ),
)


@given(_values)
def test_no_document_raises_anything_but_a_config_error(groups: object) -> None:
    try:
        targets = file_sd.parse(groups, "t.json")
    except ConfigError:
        return
    assert all(target.url.startswith("http") for target in targets)
