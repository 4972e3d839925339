"""The flags that are alike everywhere."""

from __future__ import annotations

import dataclasses

import pytest

from ufwatch.cli import options
from ufwatch.cli.options import Flags, Parser


def parser() -> Parser:
    built = Parser(prog="ufwatch run")
    options.add_target_options(built)
    options.add_serve_options(built)
    options.add_state_options(built)
    options.add_probe_options(built)
    options.add_log_options(built)
    options.add_output_options(built)
    return built


def parsed(*arguments: str) -> Flags:
    return options.flags(parser().parse_args(arguments))


def test_nothing_typed_is_nothing_given() -> None:
    assert parsed() == Flags()


def test_every_flag_arrives() -> None:
    typed = parsed(
        *("--target", "http://a:1", "--target", "b=http://b:1", "--config", "c.yaml", "--json", "--interval", "5s"),
        *("--host", "::", "--port", "1", "--web.config.file", "w.yml", "--ca-file", "ca", "--insecure"),
        *("--api-key-file", "k", "--basic-auth-file", "b", "--model", "m", "--no-gpu", "--no-gpm"),
        *("--state-dir", "s", "--otlp", "http://c:4318", "--log-level", "debug", "--log-format", "json"),
    )
    assert typed == Flags(
        targets=("http://a:1", "b=http://b:1"),
        config="c.yaml",
        json=True,
        interval="5s",
        host="::",
        port="1",
        web_config_file="w.yml",
        ca_file="ca",
        insecure=True,
        api_key_file="k",
        basic_auth_file="b",
        model="m",
        no_gpu=True,
        no_gpm=True,
        state_dir="s",
        otlp="http://c:4318",
        log_level="debug",
        log_format="json",
    )
    assert all(getattr(typed, field.name) != field.default for field in dataclasses.fields(Flags))


def test_the_web_configuration_has_both_spellings() -> None:
    assert parsed("--web-config-file=w.yml") == parsed("--web.config.file=w.yml")


def test_a_verb_with_fewer_flags_still_yields_flags() -> None:
    small = Parser()
    options.add_output_options(small)
    assert options.flags(small.parse_args(["--json"])) == Flags(json=True)


@pytest.mark.parametrize(
    "arguments", [["--nope"], ["--target"], ["--tar", "http://a"], ["--json=yes"], ["stray\nargument"]]
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ufwatch run: ")
    assert printed.err.endswith("; see ufwatch run --help\n")
    assert printed.err.count("\n") == 1


def test_the_parser_of_a_verb_is_as_strict(capsys: pytest.CaptureFixture[str]) -> None:
    top = Parser(prog="ufwatch")
    verb = top.add_subparsers().add_parser("once", help="one reading")
    options.add_target_options(verb)
    with pytest.raises(SystemExit):
        top.parse_args(["once", "--tar", "http://a"])
    assert capsys.readouterr().err.count("\n") == 1


def test_help_names_the_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for variable in ("TARGETS", "CONFIG", "INTERVAL", "HOST", "PORT", "API_KEY_FILE", "CA_FILE", "INSECURE",
                     "LOG_LEVEL", "LOG_FORMAT", "WEB_CONFIG_FILE"):  # fmt: skip
        assert f"UFWATCH_{variable}" in shown
