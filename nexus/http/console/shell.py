"""What all pages share: the services that they show, templates and their filters, headers, errors, links."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

import structlog
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from nexus import __version__
from nexus.config import Settings
from nexus.config.sources import text_of
from nexus.core.errors import BusUnavailableError, NexusError, StoreUnavailableError
from nexus.core.models import DEFAULT_SESSION, parse_moment
from nexus.core.ports import DeadLetters, Store
from nexus.http.console.access import FORM_TOKEN, Access, user_of
from nexus.services.context.builder import ContextBuilder
from nexus.services.erasure import Eraser
from nexus.services.memory.service import WorkingMemory
from nexus.services.person.constraints import Constraints
from nexus.services.person.facts import Facts
from nexus.services.recall.service import Recall
from nexus.services.records.reader import RecordReader
from nexus.services.replicas import Replicas
from nexus.services.requests.letters import LetterSender

_log = structlog.get_logger(__name__)

# No script at all, and styles and images of the console alone: what a person wrote stays text.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_KIB: Final = 1_024
_STYLE: Final = files("nexus.http.console").joinpath("static", "console.css").read_bytes()


@dataclass(frozen=True, slots=True)
class ConsoleServices:
    """What the pages show, and through which they change it. None where it is off."""

    settings: Settings
    settings_file: Path | None  # that `nexus serve` was given
    store: Store
    builder: ContextBuilder
    letters: DeadLetters
    sender: LetterSender
    replicas: Replicas
    facts: Facts
    constraints: Constraints
    records: RecordReader | None
    memory: WorkingMemory | None
    recall: Recall | None
    eraser: Eraser


@dataclass(frozen=True, slots=True)
class Visit:
    """One request to a page, with what answers it."""

    request: Request
    services: ConsoleServices
    access: Access
    # Of a form that was sent, and is one of this console where changes are allowed.
    fields: Mapping[str, str] = field(default_factory=dict)

    def asked(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self.request.query_params.get(name, default)

    @property
    def owner(self) -> str:
        """The owner whose page this is; HTTPException 400 without one."""
        if not (owner := self.asked("owner")):
            raise HTTPException(400, "owner: is needed")
        return owner

    @property
    def session(self) -> str:
        """The session whose page this is, else the default one."""
        return self.asked("session") or DEFAULT_SESSION

    def link(self, page: str, **asked: Any) -> str:
        """The address of a page. Names are parameters, since an owner's may hold anything; None leaves one out."""
        given = {name: value for name, value in asked.items() if value is not None}
        base = f"{self.request.scope.get('root_path', '')}/console/{page}"
        return f"{base}?{urlencode(given)}" if given else base

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """The page that a template makes of these values."""
        text = _TEMPLATES.get_template(template).render(
            visit=self, link=self.link, write=self.access.write, form_field=FORM_TOKEN, version=__version__, **values
        )
        return HTMLResponse(text, status)

    def session_page(self, template: str, **values: Any) -> Response:
        """A page of the session that the address names."""
        return self.page(template, owner=self.owner, session=self.session, **values)

    def seen(self, page: str, **asked: Any) -> Response:
        """What follows a change: the page that shows it, so that reloading it changes nothing again."""
        return RedirectResponse(self.link(page, **asked), 303)

    def changed(self, action: str, **about: Any) -> None:
        """Log a change: who made it, and of what, by fields that a log may have; no content."""
        _log.info("console_changed", who=user_of(self.request), action=action, **about)


Page: TypeAlias = Callable[[Visit], Awaitable[Response]]


def console_routes(
    services: ConsoleServices, pages: Mapping[str, Page], forms: Mapping[str, Page]
) -> Sequence[BaseRoute]:
    """The console, at `/console`: `pages` by their names (`""` the first), and `forms` that change something."""
    console = _Console(services, {**pages, "console.css": _style}, forms)
    return Route("/console", console), Route("/console/{page:path}", console)


class _Console:
    """An ASGI application, for which all that is asked below `/console` is one page or none."""

    def __init__(self, services: ConsoleServices, pages: Mapping[str, Page], forms: Mapping[str, Page]) -> None:
        settings = services.settings.console
        self._services = services
        self._access = Access(settings.token.get_secret_value(), write=settings.write)
        self._pages: Mapping[str, Mapping[str, Page]] = {"GET": pages, "HEAD": pages, "POST": forms}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = Visit(Request(scope, receive), self._services, self._access)
        try:
            # First of all: a stranger does not learn which pages there are.
            self._access.check(visit.request)
            page = self._page(visit.request)
            if visit.request.method == "POST":
                # And here, so that no form can forget it.
                visit = replace(visit, fields=await self._access.checked_form(visit.request))
            response = await page(visit)
        except (HTTPException, NexusError) as error:
            response = _refused(visit, error)
        except Exception:  # noqa: BLE001  # the outermost handler of a page: whatever goes wrong, it says so
            _log.exception("http_failed")
            response = _refused(visit, HTTPException(500, "this page could not be made; the service's log says why"))
        response.headers.update(_HEADERS)
        await response(scope, receive, send)

    def _page(self, request: Request) -> Page:
        name = request.path_params.get("page", "")
        page = self._pages.get(request.method, {}).get(name)
        if page is None:
            methods = [method for method, pages in self._pages.items() if name in pages]
            if not methods:
                raise HTTPException(404, "there is no such page")
            raise HTTPException(405, "this address is not asked in that way", {"Allow": ", ".join(methods)})
        return page


async def _style(_visit: Visit) -> Response:
    return Response(_STYLE, media_type="text/css")


def _refused(visit: Visit, error: HTTPException | NexusError) -> Response:
    if isinstance(error, HTTPException):
        status, reason, headers = error.status_code, error.detail, error.headers
    else:
        status, reason, headers = 400, str(error), None
        if isinstance(error, StoreUnavailableError | BusUnavailableError):
            place = "the database" if isinstance(error, StoreUnavailableError) else "the bus"
            status, reason = 503, f"{place}: {error}"
    # A page would have links for whom may see it.
    if status == 401:  # noqa: PLR2004  # a status of HTTP
        return Response(f"{reason}\n", status, headers, "text/plain; charset=utf-8")
    response = visit.page("error.html", status=status, code=status, reason=reason)
    response.headers.update(headers or {})
    return response


def _time(value: Any) -> str:
    """A time to the second, in UTC; what is none as it is."""
    moment = value if isinstance(value, datetime) else parse_moment(value)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else str(value or "")


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"  # noqa: PLR2004  # one digit
        value /= _KIB
    return f"{value:.1f} GiB"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _counted(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def as_json(value: Any) -> str:
    """Any value, of a store too, as JSON to be read; what JSON has no word for as a text."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def as_text(value: Any) -> str:
    """A text as it is, nothing as `""`, any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else as_json(value)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nexus.http.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Sequence[tuple[str, Callable[..., str]]] = [
        ("time", _time),
        ("bytes", _bytes),
        ("number", _number),
        ("counted", _counted),
        ("setting", text_of),
        ("json", as_json),
    ]
    environment.filters.update(filters)
    environment.globals["m"] = environment.get_template("macros.html").module
    return environment


_TEMPLATES: Final = _environment()
