"""Which of flag, variable, file and default wins, and how mistakes of the first two are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ufwatch.config import Config, DiscoveryConfig, GpuConfig, HttpAccess, TargetConfig, WebConfig
from ufwatch.errors import ConfigError
from ufwatch.precedence import Flags, LogSettings, from_sources, log_settings, settle


def sources(
    file: Config | None = None, env: dict[str, str] | None = None, present: bool = True, **flags: object
) -> Config:
    return from_sources(file, env or {}, Flags(**flags), exists=lambda _: present)  # type: ignore[arg-type]


def mistakes(env: dict[str, str] | None = None, present: bool = True, **flags: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        sources(None, env, present, **flags)
    return list(caught.value.mistakes)


FILE = Config(
    targets=(TargetConfig(name="a", url="http://a:1", model_name="m", access=HttpAccess(ca_file=Path("f.pem"))),),
    interval_seconds=20.0,
    discovery=DiscoveryConfig(dns=("http://v:1",), access=HttpAccess(basic_auth_file=Path("f.auth"))),
    gpu=GpuConfig(gpm=False),
    web=WebConfig(host="10.0.0.1", port=1, config_file=Path("f.yml")),
)


def test_nothing_given_is_the_default() -> None:
    assert sources() == Config()


def test_the_file_stands_where_nothing_else_is_given() -> None:
    assert sources(FILE) == FILE


def test_flag_wins_over_variable_wins_over_file() -> None:
    env = {"UFWATCH_INTERVAL": "30s", "UFWATCH_PORT": "2", "UFWATCH_HOST": "::1"}
    config = sources(FILE, env, interval="40", port="0")
    assert config.interval_seconds == 40.0
    assert (config.web.host, config.web.port, config.web.config_file) == ("::1", 0, Path("f.yml"))


def test_named_targets_replace_those_of_the_file_and_of_discovery() -> None:
    config = sources(FILE, {"UFWATCH_TARGETS": "http://b:1"}, targets=("http://c:1", "d=http://d:1/metrics"))
    assert [(target.name, target.url) for target in config.targets] == [
        ("c:1", "http://c:1"),
        ("d", "http://d:1/metrics"),
    ]
    assert config.discovery.dns == ()


def test_targets_from_the_environment_are_comma_separated() -> None:
    config = sources(FILE, {"UFWATCH_TARGETS": " http://b:1, b2=http://b:2 ,"})
    assert [target.name for target in config.targets] == ["b:1", "b2"]


def test_an_empty_variable_counts_as_not_set() -> None:
    assert sources(FILE, dict.fromkeys(("UFWATCH_TARGETS", "UFWATCH_INTERVAL", "UFWATCH_INSECURE"), "")) == FILE


def test_the_port_variable_that_kubernetes_sets_for_a_service_is_not_ours() -> None:
    assert sources(env={"UFWATCH_PORT": "tcp://10.96.0.7:9817"}).web.port == 9817


def test_how_targets_are_reached_holds_for_every_target() -> None:
    config = sources(FILE, {"UFWATCH_API_KEY_FILE": "k"}, insecure=True, model="new")
    assert config.targets[0].access == HttpAccess(insecure=True, api_key_file=Path("k"))
    assert config.targets[0].model_name == "new"
    assert config.discovery.access == HttpAccess(insecure=True, api_key_file=Path("k"))


def test_a_ca_file_flag_outranks_the_insecure_variable() -> None:
    access = sources(FILE, {"UFWATCH_INSECURE": "true"}, ca_file="x.pem").targets[0].access
    assert access == HttpAccess(ca_file=Path("x.pem"))


def test_a_basic_auth_flag_outranks_the_api_key_variable() -> None:
    config = sources(FILE, {"UFWATCH_API_KEY_FILE": "k"}, basic_auth_file="b")
    assert config.targets[0].access == HttpAccess(ca_file=Path("f.pem"), basic_auth_file=Path("b"))


def test_gpus_can_be_switched_off_but_not_on_by_flag() -> None:
    assert sources(FILE, no_gpu=True).gpu == GpuConfig(enabled=False, gpm=False)
    assert sources(no_gpm=True).gpu == GpuConfig(gpm=False)


def test_every_mistake_is_told_at_once_under_the_name_that_holds_it() -> None:
    assert mistakes(
        {"UFWATCH_INTERVAL": "0", "UFWATCH_HOST": "a/b", "UFWATCH_INSECURE": "perhaps"},
        port="http",
        targets=("http://a:1", "x=ftp://b", "y=http://u:hunter2@h", "a:8000"),
    ) == [
        '--target[1]: scheme "ftp" is not http or https; write http://host:port',
        "--target[2]: the URL holds credentials; put credentials in basic_auth_file",
        '--target[3]: "a:8000" has no scheme; write http://host:port',
        'UFWATCH_INSECURE: "perhaps" is neither true nor false; write one of them',
        "UFWATCH_INTERVAL: 0 s is not from 1 to 60 s; choose one in that range",
        'UFWATCH_HOST: "a/b" is not a host; write an address such as 127.0.0.1',
        '--port: "http" is not a whole number; write a whole number',
    ]


def test_equal_targets_are_told() -> None:
    assert mistakes(targets=("http://a", "http://a/metrics")) == [
        "--target[1]: the same server as --target[0]; remove one of them"
    ]


def test_what_excludes_each_other_is_told() -> None:
    assert mistakes(insecure=True, ca_file="x") == [
        "--insecure: --ca-file has no effect while nothing is verified; drop one of them"
    ]
    assert mistakes({"UFWATCH_INSECURE": "1", "UFWATCH_CA_FILE": "x"}) == [
        "UFWATCH_INSECURE: UFWATCH_CA_FILE has no effect while nothing is verified; drop one of them"
    ]
    assert mistakes(api_key_file="x", basic_auth_file="y") == [
        "--basic-auth-file: --api-key-file is given too, and one request carries one; drop one of them"
    ]


def test_missing_files_are_told_without_repeating_a_secret() -> None:
    found = mistakes({"UFWATCH_API_KEY_FILE": "sk-hunter2"}, present=False, ca_file="ca.pem")
    assert found == [
        '--ca-file: no such file "ca.pem"; check the path and its permissions',
        "UFWATCH_API_KEY_FILE: no such file; give the path of a readable file that holds the secret",
    ]


def test_settle_reads_the_file_that_flag_or_variable_names(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("interval: 11s")
    (tmp_path / "two.yaml").write_text("interval: 12s")
    env = {"UFWATCH_CONFIG": str(tmp_path / "one.yaml")}
    assert settle(env, Flags()).interval_seconds == 11.0
    assert settle(env, Flags(config=str(tmp_path / "two.yaml"))).interval_seconds == 12.0
    assert settle({}, Flags()) == Config()


def test_log_settings_follow_the_same_order() -> None:
    assert log_settings({}, Flags()) == LogSettings(level="info", format="text")
    env = {"UFWATCH_LOG_LEVEL": "DEBUG", "UFWATCH_LOG_FORMAT": "json"}
    assert log_settings(env, Flags()) == LogSettings(level="debug", format="json")
    assert log_settings(env, Flags(log_level="error")) == LogSettings(level="error", format="json")
    with pytest.raises(ConfigError, match='--log-level: "loud" is not known; choose from debug, info, warning, error'):
        log_settings({}, Flags(log_level="loud"))
