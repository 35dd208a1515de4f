"""All pages and forms of the console, by their names in the address."""

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.routing import BaseRoute

from nexus.http.console import contexts, erase, failures, letters, live, memory, owners, person, recall, settings, turns
from nexus.http.console.shell import ConsoleServices, Page, console_routes

# A line for each module, which names its own.
PAGES: Final[Mapping[str, Page]] = {
    **live.PAGES,
    **owners.PAGES,
    **contexts.PAGES,
    **memory.PAGES,
    **turns.PAGES,
    **person.PAGES,
    **recall.PAGES,
    **erase.PAGES,
    **failures.PAGES,
    **letters.PAGES,
    **settings.PAGES,
}
# What changes something.
FORMS: Final[Mapping[str, Page]] = {
    **memory.FORMS,
    **person.FORMS,
    **erase.FORMS,
    **letters.FORMS,
}


def create_console(services: ConsoleServices) -> Sequence[BaseRoute]:
    """The console, for the application to answer with."""
    return console_routes(services, PAGES, FORMS)
