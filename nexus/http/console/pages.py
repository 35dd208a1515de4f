"""All pages and forms of the console, by their names in the address."""

from collections.abc import Mapping
from typing import Final

from starlette.routing import Mount

from nexus.http.console import owners
from nexus.http.console.shell import ConsoleServices, Page, mounted

# A line for each module, which names its own.
PAGES: Final[Mapping[str, Page]] = {
    "": owners.owners,
    **owners.PAGES,
}
# What changes something.
FORMS: Final[Mapping[str, Page]] = {}


def create_console(services: ConsoleServices) -> Mount:
    """The console, to be mounted in the application."""
    return mounted(services, PAGES, FORMS)
