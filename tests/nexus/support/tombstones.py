"""Tombstones for services under test of which nothing was erased."""

from typing import Final

from nexus.services.history.tombstones import Tombstones
from tests.nexus.support.fakes import FakeStore

NO_TOMBSTONES: Final = Tombstones(FakeStore())
