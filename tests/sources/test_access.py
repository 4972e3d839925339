"""Credentials and certificates from files."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.sources.loopback import (
    Certificates,
    Names,
    Turn,
    answer,
    fetching,
    get,
    https,
    issue,
    looped,
    paths,
    redirecting,
    refused,
    saying,
    secret,
    serving,
    text,
)
from ufwatch.config import HttpAccess
from ufwatch.model import UP, Reason


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue(tmp_path_factory.mktemp("tls"))


def echoing(status: str = "200 OK") -> Turn:
    """Answers with the Authorization header it got."""

    async def turn(head: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        got = [line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization")]
        writer.write(answer(b"# " + b"".join(got) + b"\n", status=status))
        return True

    return turn


@looped
async def test_a_bearer_token_is_read_again_when_it_changes(tmp_path: Path) -> None:
    access = HttpAccess(api_key_file=secret(tmp_path, "first\n"))
    async with serving(echoing()) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url, access)).body == b"# Authorization: Bearer first\n"
        secret(tmp_path, "second", "new").replace(tmp_path / "key")
        assert (await get(fetcher, server.url, access)).body == b"# Authorization: Bearer second\n"
        secret(tmp_path, "third", "new").replace(tmp_path / "key")
        assert (await get(fetcher, server.url, access)).body == b"# Authorization: Bearer third\n"
        assert server.connections == 2  # the client's, and then the line's


@looped
async def test_https_where_plain_http_is_spoken() -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(b"", status="400 Bad Request"))
        writer.close()

    listener = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with listener, fetching() as fetcher:
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/metrics"
        refused(await get(fetcher, url, HttpAccess(insecure=True)), Reason.TLS, "no TLS is spoken there")


@looped
async def test_basic_credentials_from_a_file(tmp_path: Path) -> None:
    access = HttpAccess(basic_auth_file=secret(tmp_path, "wörk:pass:word\n"))
    async with serving(echoing()) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url, access)).body == b"# Authorization: Basic d8O2cms6cGFzczp3b3Jk\n"


@pytest.mark.parametrize("value", ["sesame-4711-" * 3, "user:sesame-4711"])
def test_credentials_that_come_back_are_not_shown(tmp_path: Path, value: str) -> None:
    path = secret(tmp_path, value)
    access = HttpAccess(basic_auth_file=path) if ":" in value else HttpAccess(api_key_file=path)

    async def run() -> None:
        async with serving(echoing("401 No")) as server, fetching() as fetcher:
            fetched = await get(fetcher, server.url, access)
            refused(fetched, Reason.PERMISSION, "401", "***")
            assert "sesame" not in fetched.health.detail
            assert "dXNlcjpzZXNhbW" not in fetched.health.detail

    asyncio.run(run())


@pytest.mark.parametrize(
    ("content", "reason", "said"),
    [
        (None, Reason.NO_SOURCE, "No such file"),
        (b"", Reason.PERMISSION, "empty"),
        (b" \n", Reason.PERMISSION, "empty"),
        (b"a\nb\n", Reason.PERMISSION, "one line"),
        (b"\xff\xfe", Reason.PERMISSION, "not text"),
        ("folder", Reason.PERMISSION, "not a regular file"),
    ],
)
def test_a_credential_file_that_is_no_use(
    tmp_path: Path, content: bytes | str | None, reason: Reason, said: str
) -> None:
    path = tmp_path / "key"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()

    async def run() -> None:
        async with serving(saying(text())) as server, fetching() as fetcher:
            refused(await get(fetcher, server.url, HttpAccess(api_key_file=path)), reason, "api_key_file", said)
            refused(await get(fetcher, server.url, HttpAccess(basic_auth_file=path)), reason, "basic_auth_file", said)
            assert server.heads == []

    asyncio.run(run())


@looped
async def test_a_basic_file_without_a_colon(tmp_path: Path) -> None:
    access = HttpAccess(basic_auth_file=secret(tmp_path, "sesame"))
    async with fetching() as fetcher:
        fetched = await get(fetcher, "http://127.0.0.1:1/", access)
        refused(fetched, Reason.PERMISSION, "user:password")
        assert "sesame" not in fetched.health.detail


@looped
async def test_https_with_its_own_authority(certificates: Certificates) -> None:
    async with serving(saying(text()), certificates.server()) as server, fetching() as fetcher:
        for _ in range(2):
            assert (await get(fetcher, https(server), HttpAccess(ca_file=certificates.ca_file))).health == UP
        assert server.connections == 1


@looped
async def test_an_unknown_authority_is_refused_unless_insecure(certificates: Certificates, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    async with serving(saying(text()), certificates.server()) as server, fetching() as fetcher:
        refused(await get(fetcher, https(server)), Reason.TLS, "not trusted")
        other = HttpAccess(ca_file=tmp_path / "other.pem")
        refused(await get(fetcher, https(server), other), Reason.TLS, "not trusted")
        assert (await get(fetcher, https(server), HttpAccess(insecure=True))).health == UP
        assert len(server.heads) == 1


@looped
async def test_a_certificate_for_another_name_is_refused(certificates: Certificates) -> None:
    async with serving(saying(text()), certificates.server(names=("other.test",))) as server, fetching() as fetcher:
        access = HttpAccess(ca_file=certificates.ca_file)
        refused(await get(fetcher, https(server), access), Reason.TLS, "not trusted")


@looped
async def test_a_client_certificate(certificates: Certificates) -> None:
    c = certificates
    async with serving(saying(text()), c.server(ask_client=True)) as server, fetching() as fetcher:
        pair = HttpAccess(ca_file=c.ca_file, client_cert_file=c.client_cert_file, client_key_file=c.client_key_file)
        assert (await get(fetcher, https(server), pair)).health == UP
        together = HttpAccess(insecure=True, client_cert_file=c.folder / "both.pem")
        assert (await get(fetcher, https(server), together)).health == UP
        refused(await get(fetcher, https(server), HttpAccess(ca_file=c.ca_file)), Reason.CONNECT, "client certificate?")


@looped
async def test_a_missing_client_certificate_is_named_where_the_server_says_so(certificates: Certificates) -> None:
    context = certificates.server(ask_client=True)

    def refuse() -> None:
        connection = listener.accept()[0]
        with connection:
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(connection.dup(), server_side=True)
            with suppress(ConnectionError):
                while connection.recv(4096):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving_thread = asyncio.create_task(asyncio.to_thread(refuse))
        async with fetching() as fetcher:
            url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
            access = HttpAccess(ca_file=certificates.ca_file)
            refused(await get(fetcher, url, access), Reason.TLS, "certificate required")
        await serving_thread


@looped
async def test_an_address_is_asked_by_the_name_it_was_found_for(certificates: Certificates) -> None:
    async with (
        serving(
            redirecting({"/metrics": "https://model.test:{port}/m"}), certificates.server(names=("model.test",))
        ) as server,
        fetching(resolver=Names()) as fetcher,
    ):
        access = HttpAccess(ca_file=certificates.ca_file, server_name="model.test")
        assert (await get(fetcher, https(server), access)).health == UP
        assert paths(server) == ["/metrics", "/m"]
        assert all(f"Host: model.test:{server.port}\r\n".encode() in head for head in server.heads)
        refused(await get(fetcher, https(server), HttpAccess(ca_file=certificates.ca_file)), Reason.TLS)


@looped
async def test_a_rotated_authority_is_picked_up(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    async with serving(saying(text()), certificates.server()) as server, fetching() as fetcher:
        refused(await get(fetcher, https(server), HttpAccess(ca_file=path)), Reason.TLS)
        certificates.ca.cert_pem.write_to_path(str(path))
        assert (await get(fetcher, https(server), HttpAccess(ca_file=path))).health == UP


@looped
async def test_tls_files_that_are_no_use(certificates: Certificates, tmp_path: Path) -> None:
    junk = secret(tmp_path, "junk")
    # Really encrypted, and so asked for a password at the terminal unless that is prevented.
    made = serialization.load_pem_private_key(certificates.client_key_file.read_bytes(), None)
    pkcs8, encrypted = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"hunter2")
    locked = tmp_path / "locked.pem"
    locked.write_bytes(made.private_bytes(serialization.Encoding.PEM, pkcs8, encrypted))
    gone, cert, key = tmp_path / "gone", certificates.client_cert_file, certificates.client_key_file
    async with fetching() as fetcher:
        for access, reason, said in (
            (HttpAccess(ca_file=gone), Reason.NO_SOURCE, "ca_file"),
            (HttpAccess(ca_file=tmp_path), Reason.PERMISSION, "ca_file"),
            (HttpAccess(ca_file=junk), Reason.TLS, "ca_file"),
            (HttpAccess(client_cert_file=gone), Reason.NO_SOURCE, "client_cert_file"),
            (HttpAccess(client_cert_file=cert, client_key_file=gone), Reason.NO_SOURCE, "client_key_file"),
            (HttpAccess(client_cert_file=cert), Reason.TLS, "client_cert_file"),
            (HttpAccess(client_cert_file=junk, client_key_file=key), Reason.TLS, "client_cert_file"),
            (HttpAccess(client_cert_file=cert, client_key_file=locked), Reason.TLS, "client_cert_file"),
        ):
            refused(await get(fetcher, "https://127.0.0.1:1/", access), reason, said, str(tmp_path)[:4])


@looped
async def test_tls_and_plain_ports_mixed_up(certificates: Certificates) -> None:
    async with fetching() as fetcher:
        async with serving(lambda _, __, ___: asyncio.sleep(0, False)) as plain:
            # A TLS hello has no blank line, so a server of text waits: the deadline ends it, or its answer is no TLS.
            refused(await get(fetcher, https(plain), deadline=0.1), Reason.TIMEOUT)
        async with serving(saying(text()), certificates.server()) as server:
            assert (await get(fetcher, server.url)).health.reason in (Reason.CONNECT, Reason.CONTENT)


@looped
async def test_a_redirect_may_lead_from_http_to_https_and_not_back(certificates: Certificates) -> None:
    access = HttpAccess(ca_file=certificates.ca_file)
    async with (
        serving(saying(text()), certificates.server()) as secure,
        serving(redirecting({"/metrics": https(secure)})) as plain,
        fetching() as fetcher,
    ):
        assert (await get(fetcher, plain.url, access)).health == UP
    places: dict[str, str] = {}
    async with serving(redirecting(places), certificates.server()) as secure, fetching() as fetcher:
        places["/metrics"] = f"http://127.0.0.1:{secure.port}/"
        refused(await get(fetcher, https(secure), access), Reason.CONTENT, "redirect")
