"""What it was measured on: a figure means little without it."""

import os
import platform
from importlib import metadata
from typing import Any, Final

from nexus import __version__
from nexus.adapters.redis_client import open_redis
from nexus.bench.loop import name
from nexus.bench.servers import Servers

_LIBRARIES: Final = ("redis", "hiredis", "motor", "pymongo", "pydantic", "anyio", "uvloop")


async def machine(servers: Servers) -> dict[str, Any]:
    """Processors, Python, servers and libraries. No names and no addresses."""
    async with open_redis(servers.redis_url) as redis:
        redis_version = (await redis.info("server"))["redis_version"]
    mongodb = await servers.mongo.server_info()
    return {
        "nexus": __version__,
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "loop": name(),
        "redis": redis_version,
        "mongodb": mongodb["version"],
        "driver": servers.driver,
        "libraries": {library: _version(library) for library in _LIBRARIES},
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
