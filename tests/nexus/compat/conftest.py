"""The environment of services, as for the other tests of whole services."""

from tests.nexus.e2e.conftest import environment, mode

__all__ = ["environment", "mode"]
