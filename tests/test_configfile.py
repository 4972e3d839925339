"""The configuration file: what it becomes, and every mistake named at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ufwatch import configfile
from ufwatch.config import Config, HttpAccess, KvEventsConfig, ProbeConfig, TargetConfig
from ufwatch.errors import ConfigError


def parse(text: str, present: bool = True) -> Config:
    return configfile.parse(text, "ufwatch.yaml", base=Path("/etc/ufwatch"), exists=lambda _: present)


def mistakes(text: str, present: bool = True) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, present)
    assert caught.value.where == "ufwatch.yaml"
    assert all(len(mistake.splitlines()) == 1 for mistake in caught.value.mistakes)
    return list(caught.value.mistakes)


def target(block: str) -> str:
    """A file of one target with ``block`` beside its URL."""
    return "targets:\n  - url: http://a:8000\n" + "".join(f"    {line}\n" for line in block.splitlines())


# What a good file becomes


def test_a_target_needs_only_its_url() -> None:
    assert parse("targets:\n  - url: http://127.0.0.1:8000\n") == Config(
        targets=(TargetConfig(name="127.0.0.1:8000", url="http://127.0.0.1:8000"),)
    )


def test_every_key_of_a_target_arrives() -> None:
    config = parse(
        target(
            "name: chat-a\n"
            "model_name: llama-3-8b\n"
            "gpus: [0, '1', GPU-5f, MIG-7a]\n"
            "textfile: /run/ufwatch/chat-a\n"
            'kv_events: {bind: "tcp://127.0.0.1:5557", ranks: 1, replay: "tcp://127.0.0.1:5558", topic: kv}\n'
            "dcgm: http://127.0.0.1:9400/metrics\n"
            "startup_grace: 10m\n"
            "expected_miss: 0.4\n"
            "ca_file: ca.pem\n"
            "client_cert_file: c.pem\n"
            "client_key_file: c.key\n"
            "api_key_file: /run/secrets/key\n"
        )
    )
    assert config.targets == (
        TargetConfig(
            name="chat-a",
            url="http://a:8000",
            access=HttpAccess(
                ca_file=Path("/etc/ufwatch/ca.pem"),
                client_cert_file=Path("/etc/ufwatch/c.pem"),
                client_key_file=Path("/etc/ufwatch/c.key"),
                api_key_file=Path("/run/secrets/key"),
            ),
            model_name="llama-3-8b",
            gpus=("0", "1", "GPU-5f", "MIG-7a"),
            textfile=Path("/run/ufwatch/chat-a"),
            kv_events=KvEventsConfig(bind="tcp://127.0.0.1:5557", ranks=1, replay="tcp://127.0.0.1:5558", topic="kv"),
            dcgm="http://127.0.0.1:9400/metrics",
            startup_grace_seconds=600.0,
            expected_miss=0.4,
        ),
    )


def test_every_key_of_the_top_level_arrives() -> None:
    config = parse(
        "interval: 10s\n"
        "discovery: {file_sd: [t/*.json], dns: ['http://v:1'], refresh: 1m, api_key_file: k}\n"
        "gpu: {enabled: no, gpm: off}\n"
        "web: {host: '::', port: 0, config_file: web.yml}\n"
    )
    assert config.interval_seconds == 10.0
    assert config.discovery.file_sd == ("/etc/ufwatch/t/*.json",)
    assert config.discovery.dns == ("http://v:1",)
    assert config.discovery.refresh_seconds == 60.0
    assert config.discovery.access.api_key_file == Path("/etc/ufwatch/k")
    assert (config.gpu.enabled, config.gpu.gpm) == (False, False)
    assert (config.web.host, config.web.port, config.web.config_file) == ("::", 0, Path("/etc/ufwatch/web.yml"))


@pytest.mark.parametrize(
    ("written", "seconds"), [("5", 5), ("5s", 5), ("1500ms", 1.5), ("0.5m", 30), ("1m", 60), ("2.5", 2.5), ("'7'", 7)]
)
def test_a_duration_is_seconds_or_has_units(written: str, seconds: float) -> None:
    assert parse(f"interval: {written}").interval_seconds == seconds


def test_null_means_absent() -> None:
    assert parse("targets:\ninterval: null\ngpu: ~\n") == Config()


def test_an_empty_list_of_cards_is_not_the_default() -> None:
    assert parse(target("gpus: []")).targets[0].gpus == ()
    assert parse(target("gpus:")).targets[0].gpus is None


def test_keys_may_be_empty() -> None:
    assert parse("slos:\nprobes: []\notlp: {}\n") == Config()


def test_a_probe_needs_no_more_than_its_target() -> None:
    probe = parse("targets: [{name: a, url: 'http://a'}]\nprobes: [{target: a}]").probes
    assert probe == (ProbeConfig(target="a"),)
    assert probe[0].interval_seconds == 60
    keys = "interval: 5s, operation: completions, prompt: Hi, max_tokens: 1, timeout: 1s, fresh_connection"
    for written, fresh in (("alternate", None), ("true", True), ("no", False)):
        (found,) = parse(f"targets: [{{name: b, url: 'http://b'}}]\nprobes: [{{target: b, {keys}: {written}}}]").probes
        assert found == ProbeConfig(
            target="b",
            interval_seconds=5,
            operation="completions",
            prompt="Hi",
            max_tokens=1,
            timeout_seconds=1,
            fresh_connection=fresh,
        )


def test_traces_may_be_sent_where_the_file_says() -> None:
    assert parse("otlp: {endpoint: 'http://collector:4318'}").otlp_endpoint == "http://collector:4318"
    assert parse("otlp: {receive: true}").otlp_receive


_ONE = "targets: [{name: a, url: 'http://a'}]\nprobes: [%s]"


@pytest.mark.parametrize(
    ("probe", "found"),
    [
        ("{}", "probes[0]: target is missing; write target: and the name of a target (line 2)"),
        ("7", "probes[0]: 7 is not a mapping; write keys below it (line 2)"),
        ("{target: b}", 'probes[0].target: "b" is the name of no target; known are a (line 2)'),
        (
            "{target: a}, {target: a}",
            'probes[1].target: "a" is probed by probes[0] already; keep one of them (line 2)',
        ),
        (
            "{target: a, interval: 4s}",
            "probes[0].interval: 4 s is not from 5 to 86400 s; choose one in that range (line 2)",
        ),
        (
            "{target: a, operation: embeddings}",
            'probes[0].operation: "embeddings" is not known; choose from chat, completions (line 2)',
        ),
        (
            "{target: a, fresh_connection: sometimes}",
            'probes[0].fresh_connection: "sometimes" is not known; choose from true, false, alternate (line 2)',
        ),
        (
            "{target: a, max_tokens: 0}",
            "probes[0].max_tokens: 0 is not from 1 to 1024; choose one in that range (line 2)",
        ),
        (
            "{target: a, timeout: 1h}",
            "probes[0].timeout: 3600 s is not from 1 to 600 s; choose one in that range (line 2)",
        ),
        ("{target: a, intervall: 9s}", "probes[0].intervall: unknown key; did you mean interval? (line 2)"),
    ],
)
def test_one_mistake_in_a_probe(probe: str, found: str) -> None:
    assert mistakes(_ONE % probe) == [found]


def test_aliases_are_followed() -> None:
    config = parse("targets:\n  - {url: http://a, gpus: &cards [0, 1]}\n  - {url: http://b, gpus: *cards}\n")
    assert [each.gpus for each in config.targets] == [("0", "1"), ("0", "1")]


@pytest.mark.parametrize("name", ["on", "1:30", "2024-01-01", "0x1f", "1_000"])
def test_names_that_yaml_1_1_would_misread_stay_text(name: str) -> None:
    assert parse(target(f"name: {name}")).targets[0].name == name


# Mistakes


def test_every_mistake_is_reported_at_once_with_path_and_line() -> None:
    found = mistakes(
        "targets:\n"
        "  - url: ftp://x\n"
        "    nmae: a\n"
        "  - url: http://user:hunter2@h:1\n"
        "    kv_events: {bind: 'tcp://*:1', connect: 'tcp://h:2', ranks: 0}\n"
        "    startup_grace: ten\n"
        "    expected_miss: 15\n"
        "  - 127.0.0.1:8000\n"
        "intervall: 5\n"
        "interval: 0.5\n"
        "web: {port: 70000}\n"
    )
    assert found == [
        'targets[2]: "127.0.0.1:8000" is not a mapping; write keys below it (line 8)',
        'targets[0].url: scheme "ftp" is not http or https; write http://host:port (line 2)',
        "targets[0].nmae: unknown key; did you mean name? (line 3)",
        "targets[1].url: the URL holds credentials; put credentials in basic_auth_file (line 4)",
        "targets[1].kv_events.ranks: 0 is not from 1 to 256; choose one in that range (line 5)",
        "targets[1].kv_events: both bind and connect are given; give exactly one (line 5)",
        'targets[1].startup_grace: "ten" is not a duration; write seconds, or 500ms, 5s, 10m, 1h30m (line 6)',
        "targets[1].expected_miss: 15 is not from 0 to 1; write 15 % as 0.15 (line 7)",
        "interval: 0.5 s is not from 1 to 60 s; choose one in that range (line 10)",
        "web.port: 70000 is not from 0 to 65535; choose one in that range (line 11)",
        "intervall: unknown key; did you mean interval? (line 9)",
    ]


@pytest.mark.parametrize(
    ("block", "path", "complaint"),
    [
        ("name: 12", "name", 'write "12"'),
        ("name: ''", "name", "empty"),
        ("name: http://a:8000", "name", "URL"),
        ('name: "a\\nb"', "name", "printable"),
        ('name: "\\ud800"', "name", "printable"),
        ("name: [a]", "name", "a list is not text"),
        ("gpus: 0", "gpus", "write it as [0]"),
        ("gpus: [tesla]", "gpus[0]", "names no card"),
        ("gpus: [-1]", "gpus[0]", "names no card"),
        ("gpus: [true]", "gpus[0]", "names no card"),
        ("gpus: [0, '0']", "gpus", "twice"),
        ("dcgm: http://u:hunter2@h:1", "dcgm", "basic_auth_file"),
        ("dcgm: 9400", "dcgm", "not text"),
        ("startup_grace: -1", "startup_grace", "is not from 0"),
        ("startup_grace: true", "startup_grace", "not a duration"),
        ("startup_grace: 5 s", "startup_grace", "not a duration"),
        ("startup_grace: .inf", "startup_grace", "not a duration"),
        ("startup_grace: 1e400", "startup_grace", "not a duration"),
        ("expected_miss: nan", "expected_miss", "not a number"),
        ("expected_miss: -0.1", "expected_miss", "not from 0 to 1"),
        ("insecure: maybe", "insecure", "neither true nor false"),
        ("insecure: true\nca_file: x", "insecure", "drop one"),
        ("api_key_file: x\nbasic_auth_file: y", "basic_auth_file", "drop one"),
        ("client_cert_file: x", "client_cert_file", "client_key_file"),
        ("kv_events: {}", "kv_events", "neither bind nor connect"),
        ("kv_events: 5557", "kv_events", "not a mapping"),
        ("kv_events: {bind: '127.0.0.1:5557'}", "kv_events.bind", "tcp://"),
        ("kv_events: {connect: 'tcp://*:5557'}", "kv_events.connect", "not a host to connect to"),
        ("kv_events: {bind: 'tcp://*:65535', ranks: 2}", "kv_events.bind", "no room for 2 ranks"),
        ("kv_events: {bind: 'ipc:///x', ranks: 2}", "kv_events.bind", "one rank"),
        ("kv_events: {bind: 'tcp://h:5557', ranks: 2, replay: 'tcp://h:5558'}", "kv_events.replay", "overlap"),
        ("kv_events: {bind: 'tcp://h:1', topic: 5}", "kv_events.topic", "not text"),
        ("kv_events: {bind: 'tcp://h:1', rank: 5}", "kv_events.rank", "did you mean ranks?"),
    ],
)
def test_one_mistake_in_a_target(block: str, path: str, complaint: str) -> None:
    (found,) = mistakes(target(block))
    assert found.startswith(f"targets[0].{path}: ")
    assert complaint in found
    assert "(line " in found
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("targets: 5", "targets: 5 is not a list; write it as [5] (line 1)"),
        ("targets: {url: http://a}", "targets: a mapping is not a list; write it as […] (line 1)"),
        ("targets: [~]", "targets[0]: nothing is not a mapping; write keys below it (line 1)"),
        ("targets: [{name: a}]", "targets[0]: url is missing; write url: http://host:port (line 1)"),
        ("gpu: yes", 'gpu: "yes" is not a mapping; write keys below it (line 1)'),
        (
            "probes: [{target: x}]",
            'probes[0].target: "x" is the name of no target; there are none (line 1)',
        ),
        ("slos: {ttft: 1}", "slos: a mapping is not a list; write it as […] (line 1)"),
        (
            'slos: ["ttft < 800ms, 100%"]',
            "slos[0]: an objective of 100% leaves no error budget; choose less, such as 99.9% (line 1)",
        ),
        (
            'slos: ["ttft < 800ms, 0%"]',
            "slos[0]: an objective of 0% asks for nothing; choose more, such as 95% (line 1)",
        ),
        (
            'slos: ["ttft < 800ms, 90%"]',
            "slos[0]: an objective of 90% can burn 10 times its budget at most, so the alert at 14.4 could never fire; "
            "choose over 93.06% (line 1)",
        ),
        (
            'slos: ["latency < 1s, 99%"]',
            'slos[0]: unknown metric "latency"; known are ttft, itl, tpot, e2e, queue, jitter, availability (line 1)',
        ),
        (
            'slos: ["ttft < 1s, 99%", "ttft < 2s, 99%"]',
            'slos[1]: the same name "ttft" as slos[0]; give each a name of its own, as in patience: ttft < 2.3s, 99% '
            "(line 1)",
        ),
        ("slos: [ttft]", 'slos[0]: "ttft" is not an objective; write it as ttft < 800ms, 95% (line 1)'),
        ('slos: ["ttft, 99%"]', "slos[0]: ttft needs a limit; write ttft < 800ms, 95% (line 1)"),
        (
            'slos: ["availability < 1s, 99%"]',
            "slos[0]: availability has no limit, it counts health probes; write availability, 99.9% (line 1)",
        ),
        (
            'slos: ["ttft < 1s, 99%, 90d"]',
            'slos[0]: a window of "90d" is not supported; use 7d, 28d or 30d (line 1)',
        ),
        (
            "slos: [{file: nowhere.yaml}]",
            "slos[0].file: /etc/ufwatch/nowhere.yaml: cannot be read (No such file or directory); check the path and "
            "its permissions (line 1)",
        ),
        ("otlp: collector:4317", 'otlp: "collector:4317" is not a mapping; write keys below it (line 1)'),
        (
            "otlp: {endpoint: 'ftp://c'}",
            'otlp.endpoint: scheme "ftp" is not http or https; write http://host:port (line 1)',
        ),
        ("interval: 5s\ninterval: 6s", "interval: given twice, on lines 1 and 2; keep one"),
        ("gpu: {gpm: true, gpm: false}", "gpu.gpm: given twice, on lines 1 and 1; keep one"),
        ("interval: !!python/object:os.system 5", "interval: YAML tags are not used here; remove it (line 1)"),
        ("? [a]\n: 1", "the file: a key is not text; write key: value (line 1)"),
        ("gpu: &g {gpm: true}\nweb:\n  <<: *g", "web.<<: merge keys are not supported; repeat the keys (line 3)"),
        (
            "discovery: {dns: ['http://10.0.0.1:80']}",
            "discovery.dns[0]: an address stands for itself alone; list it under targets (line 1)",
        ),
        ("web: {host: a/b}", 'web.host: "a/b" is not a host; write an address such as 127.0.0.1 (line 1)'),
        (
            "zzz: 1",
            "zzz: unknown key; known are discovery, gpu, interval, otlp, probes, slos, state_dir, targets, web "
            "(line 1)",
        ),
    ],
)
def test_one_mistake_elsewhere(text: str, found: str) -> None:
    assert mistakes(text) == [found]


def test_targets_are_compared_with_each_other() -> None:
    found = mistakes(
        "targets:\n"
        "  - {url: 'http://a:8000', name: x, kv_events: {bind: 'tcp://*:5557', ranks: 2}}\n"
        "  - {url: 'http://A:8000/metrics', name: y}\n"
        "  - {url: 'http://b:8000', name: x}\n"
        "  - {url: 'http://c:8000', kv_events: {bind: 'tcp://127.0.0.1:5558'}}\n"
    )
    assert found == [
        "targets[1]: the same server as targets[0]; remove one of them (line 3)",
        'targets[2]: the same name "x" as targets[0]; give each a name of its own (line 4)',
        "targets[3]: kv_events binds port 5558, as targets[0] does; choose another (line 5)",
    ]


def test_one_source_of_counts_for_two_targets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    found = mistakes(
        "targets:\n"
        f"  - {{url: 'http://a', textfile: '{tmp_path}', kv_events: {{connect: 'tcp://h:5557', ranks: 2}}}}\n"
        f"  - {{url: 'http://b', textfile: '{tmp_path}/link/', kv_events: {{bind: 'ipc:///run/kv'}}}}\n"
        "  - {url: 'http://c', textfile: other, kv_events: {connect: 'tcp://H:5558'}}\n"
        "  - {url: 'http://d', kv_events: {bind: 'ipc:///run/kv'}}\n"
        "  - {url: 'http://e', kv_events: {connect: 'tcp://h:5559'}}\n"
        "  - {url: 'http://f', kv_events: {bind: 'tcp://*:5557'}}\n"
    )
    assert found == [
        "targets[1]: the same textfile folder as targets[0]; counts would be taken twice: use two folders (line 3)",
        "targets[2]: the same kv_events endpoint as targets[0]; counts would be taken twice: drop one (line 4)",
        "targets[3]: the same kv_events endpoint as targets[1]; counts would be taken twice: drop one (line 5)",
    ]


def test_files_that_must_exist_are_missed_and_secrets_are_not_repeated() -> None:
    found = mistakes(
        target("textfile: later\nca_file: ca.pem\napi_key_file: sk-hunter2")
        + "web: {config_file: web.yml}\ndiscovery: {file_sd: [later.json], basic_auth_file: hunter2}\n",
        present=False,
    )
    assert found == [
        'targets[0].ca_file: no such file "/etc/ufwatch/ca.pem"; check the path and its permissions (line 4)',
        "targets[0].api_key_file: no such file; give the path of a readable file that holds the secret (line 5)",
        "discovery.basic_auth_file: no such file; give the path of a readable file that holds the secret (line 7)",
        'web.config_file: no such file "/etc/ufwatch/web.yml"; check the path and its permissions (line 6)',
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "line 1, column 1: is empty; write at least one key"),
        ("# nothing\n", "line 1, column 1: is empty; write at least one key"),
        ("- a\n", "line 1, column 1: a list is not a mapping; write keys such as targets:"),
        ("hello", 'line 1, column 1: "hello" is not a mapping; write keys such as targets:'),
        ("a: 1\nb: [1,\n", "line 3, column 1: not YAML (expected the node content, but found '<stream end>')"),
        (
            "a:\n\tb: 1",
            "line 2, column 1: not YAML (found character '\\t' that cannot start any token; "
            "indent with blanks, not tabs)",
        ),
        ("a: 1\nb: x\x00y", "line 2, column 5: holds a control character; is this a text file?"),
        ("a: 1\n---\nb: 2", "line 2, column 1: not YAML (but found another document)"),
        ("a: &a [*a]", "line 1: an alias holds itself; repeat the values instead"),
        ("a: *b", "line 1, column 4: not YAML (found undefined alias 'b')"),
        ("[" * 5000, "line 1, column 51: not YAML (nested too deeply)"),
        ('a: "\\UFFFFFFFF"', "not YAML (OverflowError); check the escapes in its quoted texts"),
    ],
)
def test_what_is_no_configuration_at_all_gives_one_line(text: str, found: str) -> None:
    assert mistakes(text) == [found]


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert mistakes("\n".join(levels)) == ["holds more than 100000 values; check its aliases"]


def test_long_keys_over_many_values_cost_no_memory() -> None:
    depth = "".join(f"{{{'k' * 1000}{n}: " for n in range(40))
    found = mistakes(f"{depth}[{'a, ' * 20_000}]{'}' * 40}")
    assert len(found) == 1


# Reading the file


def test_load_reads_a_file_and_starts_paths_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    path = tmp_path / "ufwatch.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + target("ca_file: ca.pem").encode())
    assert configfile.load(path).targets[0].access.ca_file == tmp_path / "ca.pem"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"a: 1\nb: \xff\xfe", "line 2: not UTF-8 text"),
        ("targets: []".encode("utf-16"), "line 1: not UTF-8 text"),
        (b"# " + b"x" * (1 << 20), "over 1 MiB"),
    ],
)
def test_load_refuses_what_is_not_a_small_text(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "ufwatch.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=complaint) as caught:
        configfile.load(path)
    assert len(caught.value.mistakes) == 1


def test_load_says_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read \(No such file or directory\)"):
        configfile.load(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match=r"not a regular file|Is a directory"):
        configfile.load(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="not a regular file"):
        configfile.load(tmp_path / "fifo")


# Whatever is written

_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(["http://a:1", "5s"])
).map(lambda value: repr(value) if isinstance(value, str) else str(value))
_keys = st.sampled_from(
    ["targets", "url", "name", "gpus", "kv_events", "bind", "connect", "ranks", "replay", "interval", "web", "port",
     "discovery", "dns", "file_sd", "slos", "gpu", "insecure", "ca_file", "startup_grace", "<<", "x", "'\\n'"]
)  # fmt: skip
_flow = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(_keys, inner), max_size=5).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        ),
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(_flow, st.text(alphabet="abc:-[]{}&*!|>'\"\\%@#? \n\t0.~<,é\x00\ud800", max_size=60), st.text()))
def test_no_text_raises_anything_but_a_config_error(text: str) -> None:
    for where in ("ufwatch.yaml", "ufwatch.json"):
        told: tuple[str, ...] = ("a configuration",)
        try:
            configfile.parse(text, where, exists=lambda _: False)
        except ConfigError as error:
            told = error.mistakes
        assert told
        assert all("\n" not in mistake for mistake in told)
