"""The environment in which `nexus serve` is started for a test."""

import pytest


@pytest.fixture
def database_name(prepared_database: str) -> str:
    """A database from the pool: to make and drop one for each test takes longer than many a test."""
    return prepared_database


@pytest.fixture
def environment(redis_url: str, mongo_uri: str, database_name: str, channel_prefix: str) -> dict[str, str]:
    """Variables for a service on the test's own names."""
    return {
        "NEXUS_BUS__URL": redis_url,
        "NEXUS_BUS__CHANNEL_PREFIX": channel_prefix,
        # Of requests that name none: nothing is missing only because the machine is busy.
        "NEXUS_BUS__REQUEST_DEADLINE_MS": "25000",
        "NEXUS_DATABASE__URI": mongo_uri,
        "NEXUS_DATABASE__NAME": database_name,
        "NEXUS_DATABASE__TIMEOUT_MS": "5000",
        "NEXUS_SYSTEM__LOG_FORMAT": "json",
    }


@pytest.fixture(params=["pubsub", "streams"])
def mode(request: pytest.FixtureRequest, environment: dict[str, str]) -> str:
    """The mode of the bus, which the services of the test have."""
    environment["NEXUS_BUS__MODE"] = request.param
    return str(request.param)


@pytest.fixture
def streams(environment: dict[str, str]) -> dict[str, str]:
    """Variables for a service on streams, where work that a dead replica had goes to another soon."""
    return environment | {"NEXUS_BUS__MODE": "streams", "NEXUS_BUS__LEASE_MS": "500"}
