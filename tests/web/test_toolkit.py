"""The exporter-toolkit's file: what is accepted, what is refused, and that it holds over real connections."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp
import bcrypt
import pytest
import trustme

from tests.web.exchange import Agent, exchange
from ufwatch.errors import ConfigError
from ufwatch.web import auth
from ufwatch.web.auth import BasicAuth
from ufwatch.web.server import Served
from ufwatch.web.toolkit import load

HASH = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def issue(ca: trustme.CA, folder: Path) -> None:
    """Writes a new certificate and its key for 127.0.0.1."""
    issued = ca.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")


def written(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text))
    assert caught.value.where == str(folder / "web.yml")
    return caught.value.mistakes


def basic(user: str, password: str) -> str:
    """An ``Authorization`` header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"


@pytest.mark.parametrize(
    "text", ["", "{}", "tls_server_config: {}", "basic_auth_users:", "http_server_config: {http2: true}"]
)
def test_a_file_may_ask_for_nothing(tmp_path: Path, text: str) -> None:
    security = load(written(tmp_path, text))
    assert (security.tls, security.headers, dict(security.users)) == (None, (), {})


def test_everything_at_once(tmp_path: Path, ca: trustme.CA) -> None:
    issue(ca, tmp_path)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    security = load(
        written(
            tmp_path,
            TLS + "  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n  min_version: TLS13\n"
            "  max_version: TLS13\nhttp_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n"
            f"basic_auth_users:\n  ops: {HASH}\n",
        )
    )
    assert security.tls is not None
    assert security.tls.cert_file == tmp_path / "cert.pem"
    assert security.tls.client_auth is ssl.CERT_REQUIRED
    assert security.tls.min_version is ssl.TLSVersion.TLSv1_3
    assert security.headers == (("X-Frame-Options", "deny"),)
    assert dict(security.users) == {"ops": HASH}
    assert HASH not in repr(security)


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        "tls_server_config:\n  cert_file: none.pem\n  cipher_suites: [X]\n  colour: red\n  min_version: TLS10\n"
        "  client_auth_type: RequireAnyClientCert\n"
        "http_server_config: {http3: true, http2: maybe, headers: {Server: x, X-Frame-Options: all}}\n"
        "basic_auth_users: {ops: hunter2, 'a:b': x}\nrate_limit: {}\n",
    )
    paths = [mistake.split(": ")[0] for mistake in found]
    assert sorted(paths) == sorted(
        [
            "tls_server_config.cert_file",
            "tls_server_config.key_file",
            "tls_server_config.cipher_suites",
            "tls_server_config.colour",
            "tls_server_config.min_version",
            "tls_server_config.client_auth_type",
            "http_server_config.http3",
            "http_server_config.http2",
            "http_server_config.headers.Server",
            "http_server_config.headers.X-Frame-Options",
            "basic_auth_users.ops",
            "basic_auth_users.a:b",
            "rate_limit",
        ]
    )
    assert "hunter2" not in "\n".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", "must be a mapping"),
        ("a: [", "is no valid YAML at line"),
        ("tls_server_config: 3", "tls_server_config: must be a mapping"),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", "client_ca_file: is needed"),
        (TLS + "  client_ca_file: cert.pem\n", "client_auth_type: must be"),
        (TLS + "  min_version: TLS13\n  max_version: TLS12\n", "max_version: is below min_version"),
        ("basic_auth_users: {ops: '$2y$31$" + HASH[7:] + "'}", "cost must lie between"),
        ('http_server_config: {headers: {X-Frame-Options: "deny\\r\\nX: y"}}', "has no valid value"),
    ],
)
def test_single_mistakes(tmp_path: Path, ca: trustme.CA, text: str, expected: str) -> None:
    issue(ca, tmp_path)
    assert any(expected in mistake for mistake in mistakes(tmp_path, text))


def test_files_that_do_not_belong_together(tmp_path: Path, ca: trustme.CA) -> None:
    issue(ca, tmp_path)
    ca.issue_cert("127.0.0.1").private_key_pem.write_to_path(tmp_path / "key.pem")
    assert "cannot be used together" in mistakes(tmp_path, TLS)[0]
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "missing.yml")


def test_without_bcrypt_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    assert mistakes(tmp_path, f"basic_auth_users: {{ops: '{HASH}'}}") == (
        "basic_auth_users: needs bcrypt; install it with: pip install 'ufwatch[web-auth]'",
    )


def test_tls_headers_and_renewed_certificates(tmp_path: Path, ca: trustme.CA) -> None:
    issue(ca, tmp_path)
    path = written(tmp_path, TLS + "http_server_config: {headers: {Strict-Transport-Security: max-age=60}}\n")

    async def serial(served: Served) -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=trusting(ca))
        certificate = writer.get_extra_info("ssl_object").getpeercert()
        writer.close()
        await writer.wait_closed()
        return int(certificate["serialNumber"], 16)

    async def work(client: aiohttp.ClientSession, served: Served) -> None:
        assert served.url.startswith("https://")
        async with client.get("/-/healthy") as answer:
            assert answer.headers["Strict-Transport-Security"] == "max-age=60"
        first = await serial(served)
        key = (tmp_path / "key.pem").read_bytes()
        issue(ca, tmp_path)
        new_key = (tmp_path / "key.pem").read_bytes()
        # Half of the pair replaced, and then a file gone: the last good pair goes on.
        (tmp_path / "key.pem").write_bytes(key)
        assert await serial(served) == first
        (tmp_path / "key.pem").unlink()
        assert await serial(served) == first
        (tmp_path / "key.pem").write_bytes(new_key)
        assert await serial(served) != first
        async with client.get("/-/healthy") as answer:
            assert answer.status == 200

    exchange(work, config_file=path, tls=trusting(ca))


def test_clients_without_a_certificate_are_refused(tmp_path: Path, ca: trustme.CA) -> None:
    issue(ca, tmp_path)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    path = written(tmp_path, TLS + "  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n")
    known = trusting(ca)
    ca.issue_cert("client@example.test").configure_cert(known)
    stranger = trusting(ca)
    trustme.CA().issue_cert("client@example.test").configure_cert(stranger)

    async def works(client: aiohttp.ClientSession, _: Served) -> None:
        async with client.get("/-/healthy") as answer:
            assert answer.status == 200

    async def fails(client: aiohttp.ClientSession, _: Served) -> None:
        with pytest.raises(aiohttp.ClientError):
            async with client.get("/-/healthy"):
                pass

    exchange(works, config_file=path, tls=known)
    exchange(fails, config_file=path, tls=trusting(ca))
    exchange(fails, config_file=path, tls=stranger)


def test_every_path_asks_for_the_password(tmp_path: Path) -> None:
    path = written(tmp_path, f"basic_auth_users: {{ops: '{HASH}'}}")
    good = basic("ops", "open sesame")
    bad = [
        {},
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic b3Bz"},
        {"Authorization": "Basic /w=="},
        {"Authorization": b"Basic \xff".decode("latin-1")},
        {"Authorization": basic("ops", "wrong")},
        {"Authorization": basic("ops", "x" * 500)},
        {"Authorization": basic("ops", "nul\0")},
        {"Authorization": basic("ops", "")},
        {"Authorization": basic("else", "open sesame")},
    ]

    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        for address in ("/", "/metrics", "/-/healthy", "/-/ready", "/health", "/api/v1/readings", "/no/such"):
            async with client.get(address) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Basic ")
                assert answer.headers["Server"] == "ufwatch"
            async with client.get(address, headers={"Authorization": good}) as answer:
                assert answer.status == (404 if address == "/no/such" else 200)
        for headers in bad:
            async with client.get("/metrics", headers=headers) as answer:
                assert answer.status == 401, headers
        async with client.post("/metrics") as answer:
            assert answer.status == 401

    exchange(work, agent=Agent(), config_file=path)


def test_bcrypt_runs_once_per_right_password_in_a_thread_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bytes, bytes]] = []
    running = 0

    def checkpw(password: bytes, hashed: bytes) -> bool:
        nonlocal running
        assert threading.current_thread() is not threading.main_thread()
        running += 1
        assert running == 1
        calls.append((password, hashed))
        threading.Event().wait(0.01)
        running -= 1
        return password == b"right"

    monkeypatch.setattr(auth, "load_bcrypt", lambda: checkpw)

    async def main() -> None:
        guard = BasicAuth({"a": "hash-a", "b": "hash-b"})
        assert await guard.allows(basic("a", "right"))
        for _ in range(3):
            assert await guard.allows(basic("a", "right"))
        assert len(calls) == 1
        answers: list[Any] = await asyncio.gather(*(guard.allows(basic("a", f"wrong{n}")) for n in range(5)))
        assert answers == [False] * 5
        # A user that does not exist costs the same, even with somebody's password.
        assert not await guard.allows(basic("nobody", "right"))
        assert calls[-1] == (b"right", b"hash-a")
        assert await guard.allows(basic("a", "right"))
        assert len(calls) == 7
        assert not await guard.allows(basic("b:a", "right"))

    asyncio.run(main())


def test_hashes_as_htpasswd_writes_them() -> None:
    async def main() -> None:
        guard = BasicAuth({"ops": "$2y$" + HASH.removeprefix("$2b$")})
        assert await guard.allows(basic("ops", "open sesame"))

    asyncio.run(main())


def test_an_encrypted_key_is_refused_and_asks_nobody(tmp_path: Path, ca: trustme.CA) -> None:
    issue(ca, tmp_path)
    key = tmp_path / "key.pem"
    openssl = ["openssl", "pkey", "-aes128", "-passout", "pass:x", "-in", str(key), "-out", str(tmp_path / "enc.pem")]
    try:
        subprocess.run(openssl, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("the program openssl is not installed")
    os.replace(tmp_path / "enc.pem", key)
    assert "cannot be used together" in mistakes(tmp_path, TLS)[0]
