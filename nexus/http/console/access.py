"""Who may see the console, and what may be changed there (contract §16).

- With a token, a browser sends it as the password of HTTP's basic authentication, a program as a bearer token.
- Without one, only this machine is answered, and only by a name of its own: else a page of any site could have a
  browser here ask under that site's name (DNS rebinding). What a proxy passes on does not count as this machine.
- A change comes from a form of the console: it has the form's token, and the browser says no other site as its origin.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request

# In a form, the field of its token.
FORM_TOKEN: Final = "form_token"  # noqa: S105  # the name of a field
_MOST_FORM_BYTES: Final = 1 << 21
_MOST_FIELDS: Final = 1_000
_PASSED_ON: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="Nexus console", charset="UTF-8"'}
_LONGEST_NAME: Final = 64


class Access:
    """Checks each request to the console. `token` is `""` for none; `write`: changes are allowed."""

    def __init__(self, token: str, *, write: bool) -> None:
        self._token = token.encode()
        self.write = write
        # With a token, the same in all replicas: a form may be sent to another one.
        key = self._token or secrets.token_bytes(32)
        self.form_token = hmac.new(key, b"nexus console form", hashlib.sha256).hexdigest()

    def check(self, request: HTTPConnection) -> None:
        """Let the request pass, or raise HTTPException 401."""
        if self._token:
            given = _credentials(request)[1]
            # Of one length, so that the time tells nothing of the token.
            if given is None or not hmac.compare_digest(_digest(given), _digest(self._token)):
                raise HTTPException(401, "the token of the console is needed (console.token)", _CHALLENGE)
        elif not _is_of_this_machine(request):
            reason = "without console.token the console answers this machine alone, as localhost"
            raise HTTPException(401, reason)

    def check_write(self) -> None:
        """Raise HTTPException 403 where changes are not allowed."""
        if not self.write:
            raise HTTPException(403, "the console only shows: console.write is off")

    async def checked_form(self, request: Request) -> Mapping[str, str]:
        """The fields of a form that was sent to change something.

        Raises:
            HTTPException: 403 where changes are not allowed, or for a foreign form; 413 for a long one.
        """
        self.check_write()
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin" or not _is_same_origin(request):
            raise HTTPException(403, "a form of another site changes nothing here")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_FORM_BYTES:
                raise HTTPException(413, f"a form has at most {_MOST_FORM_BYTES} bytes")
        try:
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
        except ValueError:
            raise HTTPException(400, "the form cannot be read") from None
        if not hmac.compare_digest(fields.pop(FORM_TOKEN, "").encode(), self.form_token.encode()):
            raise HTTPException(403, "the form is out of date: open its page again")
        # Browsers end lines with CR LF.
        return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def user_of(request: HTTPConnection) -> str:
    """How the person calls themselves, for the log; the address of a person who says no name."""
    name = "".join(char for char in _credentials(request)[0][:_LONGEST_NAME] if char.isprintable())
    return name or (request.client.host if request.client else "")


def _credentials(request: HTTPConnection) -> tuple[str, bytes | None]:
    """The user's name and the token that a request brings; None for no token."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        # Headers are bytes, which starlette decodes as Latin-1.
        return "", value.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return "", None
    try:
        name, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return "", None
    return name.decode(errors="replace"), password if colon else None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _is_of_this_machine(request: HTTPConnection) -> bool:
    if request.client is None or any(name in request.headers for name in _PASSED_ON):
        return False
    named = request.headers.get("host", "")
    # What stands before an @ or behind a / is no host, and no browser sends it.
    host = "" if {*named} & {*"@/?#"} else _host(f"//{named}")
    return _is_loopback(request.client.host) and (host == "localhost" or _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _is_same_origin(request: HTTPConnection) -> bool:
    """Whether the browser says nothing else. The port counts: other programs of this machine have pages, too."""
    origin = request.headers.get("origin")
    if origin is None:
        return True
    parts = _parts(origin)
    return parts is not None and parts.netloc == request.headers.get("host", "")


def _host(url: str) -> str:
    parts = _parts(url)
    return (parts and parts.hostname) or ""


def _parts(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None
