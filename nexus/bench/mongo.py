"""Plain clients of MongoDB for the bench: those of the floor and of what fills databases."""

from typing import Any


def client_of(driver: str, uri: str) -> Any:
    """An asyncio client.

    Args:
        driver: as `database.driver`.
        uri: of the servers.
    """
    if driver == "motor":
        from motor.motor_asyncio import AsyncIOMotorClient  # noqa: PLC0415  # only the driver that is measured

        return AsyncIOMotorClient(uri)
    from pymongo import AsyncMongoClient  # noqa: PLC0415  # as above

    return AsyncMongoClient(uri)
