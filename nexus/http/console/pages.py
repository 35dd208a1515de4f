"""All pages and forms of the console, by their names in the address."""

from starlette.routing import Mount

from nexus.http.console import owners
from nexus.http.console.shell import ConsoleServices, mounted


def create_console(services: ConsoleServices) -> Mount:
    """The console, to be mounted in the application."""
    return mounted(services, {"": owners.owners, **owners.PAGES}, {})
