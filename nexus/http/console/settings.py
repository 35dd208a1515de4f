"""Each setting, its value and where that comes from, as `nexus config show` says it (contract §13)."""

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from starlette.responses import Response

from nexus.config.loading import with_stored
from nexus.config.sources import Origin, origins, version_of
from nexus.core.errors import ConfigError, StoreUnavailableError
from nexus.http.console.shell import Page, Visit


async def settings(visit: Visit) -> Response:
    """The settings of this replica; without the stored ones where those cannot be read or are wrong."""
    services = visit.services
    loaded, path = services.settings, services.settings_file
    stored, fault = {}, ""
    try:
        stored = await services.store.find_configuration(loaded.environment) or {}
        found = origins(loaded, stored, path)
    except (ConfigError, StoreUnavailableError) as error:
        stored, fault, found = {}, str(error), origins(loaded, {}, path)
    return visit.page(
        "settings.html",
        sections=[(name, [*items]) for name, items in groupby(found, _section_of)],
        fault=fault,
        environment=loaded.environment,
        in_force=services.builder.settings.version,
        shown=version_of(with_stored(loaded, stored)),
    )


def _section_of(origin: Origin) -> str:
    return origin.key.partition(".")[0]


PAGES: Final[Mapping[str, Page]] = {"settings": settings}
