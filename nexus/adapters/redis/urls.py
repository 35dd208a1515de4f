"""The forms of `bus.url`: one server, Sentinel or a cluster.

redis://  rediss://                    [user:password@]host[:port][/database]
unix://                                [user:password@]/path/of/the/socket[?db=0]
redis+sentinel://  rediss+sentinel://  [user:password@]host[:port],host[:port]/service[/database]
redis+cluster://  rediss+cluster://    [user:password@]host[:port],host[:port]

`rediss` is TLS. Errors never repeat the URL, which may hold a password.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from nexus.core.errors import ConfigError

Kind = Literal["single", "sentinel", "cluster"]
Address = tuple[str, int]

_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("redis", "rediss", "unix"), "single"),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel"), "sentinel"),
    **dict.fromkeys(("redis+cluster", "rediss+cluster"), "cluster"),
}
_PORTS: Final[dict[Kind, int]] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
_FLAGS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MOST_PORT: Final = 65_535


@dataclass(frozen=True)
class RedisUrl:
    """A URL in its parts. `login`, `tls` and `sentinel_login` are keyword arguments of redis-py."""

    kind: Kind
    addresses: tuple[Address, ...] = ()
    path: str = ""
    service: str = ""
    database: int = 0
    secure: bool = False
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Mapping[str, Any] = field(default_factory=dict)
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        """Where it leads, without a password: hosts or the socket, and the service or the database."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return self.path or (hosts if self.kind == "cluster" else f"{hosts}/{self.service or self.database}")


def parse_redis_url(url: str) -> RedisUrl:
    """The parts of a URL; ConfigError, which does not repeat it, where it cannot be used."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        _refuse("cannot be read; a password's special characters are written as %XX")
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        _refuse(f"begins with one of {', '.join(f'{scheme}://' for scheme in _KINDS)}")
    secure = parts.scheme.startswith("rediss")
    _check_options(kind, options, secure=secure, unix=parts.scheme == "unix")
    login, _, hosts = parts.netloc.rpartition("@")
    service, database = _path(kind, parts, options)
    return RedisUrl(
        kind,
        addresses=() if parts.scheme == "unix" else _addresses(kind, hosts),
        path=unquote(parts.path) if parts.scheme == "unix" else "",
        service=service,
        database=database,
        secure=secure,
        login=_login(*login.partition(":")[::2]),
        tls=_tls(options),
        sentinel_login=_login(*(options.get(name, "") for name in _SENTINEL_OPTIONS), quoted=False),
    )


def _check_options(kind: Kind, options: Mapping[str, str], *, secure: bool, unix: bool) -> None:
    allowed = [
        *(["db"] if kind == "single" else []),
        *(_SENTINEL_OPTIONS if kind == "sentinel" else []),
        *(_TLS_OPTIONS if secure and not unix else []),
    ]
    if not options.keys() <= {*allowed}:
        hint = "" if secure or unix else "; those for TLS need rediss"
        _refuse(f"has an unknown option; allowed here: {', '.join(allowed) or 'none'}{hint}")


def _addresses(kind: Kind, hosts: str) -> tuple[Address, ...]:
    entries = hosts.split(",")
    if kind == "single" and len(entries) > 1:
        _refuse("names several hosts; that is for redis+sentinel:// and redis+cluster://")
    return tuple(_address(kind, entry) for entry in entries)


def _address(kind: Kind, entry: str) -> Address:
    try:
        parsed = urlsplit(f"//{entry}")
        host, port = parsed.hostname, _PORTS[kind] if parsed.port is None else parsed.port
    except ValueError:
        host, port = None, 0
    if port == 0:
        _refuse(f"has a wrong port or host; host:port is allowed, with a port from 1 to {_MOST_PORT}")
    if not host:
        if kind == "single":
            return "localhost", port
        _refuse(f"names no host; redis+{kind}://host:{_PORTS[kind]},host:{_PORTS[kind]} is allowed")
    return unquote(host), port


def _path(kind: Kind, parts: SplitResult, options: Mapping[str, str]) -> tuple[str, int]:
    if parts.scheme == "unix":
        if not parts.path:
            _refuse("names no socket; unix:///path/of/the/socket is allowed")
        return "", _database(options.get("db", ""))
    pieces = parts.path.strip("/").split("/")
    service = unquote(pieces.pop(0)) if kind == "sentinel" else ""
    if kind == "sentinel" and not service:
        _refuse("names no service; redis+sentinel://host:26379,host:26379/service is allowed")
    if len(pieces) > 1 or (kind == "cluster" and pieces != [""]):
        _refuse("has a path that is too long; a cluster has no databases, others have /number")
    return service, _database(options.get("db") or (pieces[0] if pieces else ""))


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal()):
        _refuse("has a wrong database; a number is allowed")
    return int(text or 0)


def _login(user: str, password: str, *, quoted: bool = True) -> dict[str, str]:
    entries = {"username": user, "password": password}
    return {name: unquote(text) if quoted else text for name, text in entries.items() if text}


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: options[name] for name in _TLS_OPTIONS if name in options}
    if found.get("ssl_cert_reqs", "required") not in {"none", "optional", "required"}:
        _refuse("has a wrong ssl_cert_reqs; none, optional or required is allowed")
    if "ssl_keyfile" in found and "ssl_certfile" not in found:
        _refuse("has ssl_keyfile, which needs ssl_certfile")
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = _FLAGS.get(found["ssl_check_hostname"].lower())
        if found["ssl_check_hostname"] is None:
            _refuse("has a wrong ssl_check_hostname; true or false is allowed")
    return found


def _refuse(what: str) -> NoReturn:
    raise ConfigError(f"bus.url: {what}")
