"""Addresses: what is accepted, what is said about the rest, and when two of them are one server."""

from __future__ import annotations

import pytest

from ufwatch.address import host_port, http_url, same_place, with_host, zmq_endpoint


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("https://chat.internal/vllm/metrics", "https://chat.internal/vllm/metrics"),
        ("http://[::1]:8000/metrics", "http://[::1]:8000/metrics"),
        ("http://vllm_a:8000", "http://vllm_a:8000"),
    ],
)
def test_a_base_or_metrics_address_is_kept(given: str, kept: str) -> None:
    assert http_url(given) == kept


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("127.0.0.1:8000", "has no scheme"),
        ("localhost:8000", "has no scheme"),
        ("ftp://h:1", 'scheme "ftp" is not http or https'),
        ("http://", "no valid host"),
        ("http://:8000", "no valid host"),
        ("http://h:0", "port"),
        ("http://h:70000", "port"),
        ("http://h:", "port"),
        ("http://h:80:90", "port"),
        ("http://h:٨٠", "port"),
        ("http://[::1", "not a URL"),
        ("http://[::1]x:80", "no valid host"),
        ("http://[fe80::1%eth0]:80", "no valid host"),
        ("http://h/a?b=c", "query"),
        ("http://h/?", "query"),
        ("http://h/#x", "fragment"),
        (" http://h", "blanks"),
        ("http://h/\nX: y", "control"),
        ("http://bücher.example", "no valid host"),
    ],
)
def test_a_bad_url_is_refused_with_its_reason(given: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        http_url(given)


@pytest.mark.parametrize(
    "given",
    [
        "http://user:hunter2@h:1",
        "http://hunter2@h",
        "user:hunter2@h:1",
        "http://user:hunter2@[::1",
        "ftp://u:hunter2@h",
    ],
)
def test_credentials_are_refused_and_never_repeated(given: str) -> None:
    with pytest.raises(ValueError, match=r"write http|basic_auth_file") as caught:
        http_url(given)
    assert "hunter2" not in str(caught.value)


def test_the_message_about_credentials_says_where_to_put_them() -> None:
    with pytest.raises(ValueError, match="put credentials in basic_auth_file"):
        http_url("http://user:hunter2@h:1")


@pytest.mark.parametrize(
    ("url", "name"),
    [("http://a:8000", "a:8000"), ("http://a", "a:80"), ("https://a/x", "a:443"), ("http://[::1]:80", "[::1]:80")],
)
def test_the_default_name_always_has_a_port(url: str, name: str) -> None:
    assert host_port(url) == name


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://a:8000", "http://a:8000/metrics", True),
        ("http://A:80", "http://a", True),
        ("http://a/x/metrics", "http://a/x", True),
        ("http://a", "https://a", False),
        ("http://a/x", "http://a/y", False),
        ("http://a:8000", "http://a:8001", False),
    ],
)
def test_spellings_of_one_server_are_recognised(one: str, other: str, same: bool) -> None:
    assert (same_place(one) == same_place(other)) is same


def test_a_host_is_replaced_by_an_address_and_keeps_port_and_path() -> None:
    assert with_host("https://vllm.svc/metrics", "fd00::1") == "https://[fd00::1]:443/metrics"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("tcp://127.0.0.1:5557", ("127.0.0.1", 5557)),
        ("tcp://*:5557", ("*", 5557)),
        ("tcp://[::]:5557", ("::", 5557)),
        ("ipc:///run/kv", ("/run/kv", None)),
    ],
)
def test_endpoints_to_bind(given: str, found: tuple[str, int | None]) -> None:
    assert zmq_endpoint(given, bind=True) == found


@pytest.mark.parametrize("given", ["tcp://*:1", "tcp://h", "tcp://h:0", "tcp://:1", "http://h:1", "h:1", "ipc://x", ""])
def test_endpoints_that_cannot_be_connected_to(given: str) -> None:
    with pytest.raises(ValueError, match="; "):
        zmq_endpoint(given, bind=False)
