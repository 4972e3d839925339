"""Asks a running agent for a JSON document of its own."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from ufwatch.config import HttpAccess
from ufwatch.errors import SourceError

_DEADLINE_SECONDS = 10.0
_MOST_BYTES = 64 << 20


def read_json(url: str, access: HttpAccess) -> dict[str, Any]:
    """The JSON object at ``url``. Raises SourceError with one line that says what failed; blocks."""
    request = urllib.request.Request(url)
    context = None
    try:
        if access.basic_auth_file is not None:
            word = access.basic_auth_file.read_bytes().strip()
            request.add_header("Authorization", f"Basic {base64.b64encode(word).decode()}")
        if url.startswith("https://"):
            context = ssl.create_default_context(cafile=str(access.ca_file) if access.ca_file is not None else None)
            if access.insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        # An agent is asked directly: it stands beside us, and a proxy would not know it.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=_DEADLINE_SECONDS) as answer:
            found = json.loads(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        problem = f"answers {error.code}" + ("; give --basic-auth-file" if error.code == 401 else "")
        error.close()
        raise SourceError(f"{url}: {problem}") from None
    except RecursionError:
        raise SourceError(f"{url}: the answer is not an agent's; check the address") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise SourceError(f"{url}: {reason}; is an agent running there?") from None
    if not isinstance(found, dict) or not isinstance(found.get("targets"), list):
        raise SourceError(f"{url}: the answer is not an agent's; check the address")
    return found
