"""Which files of the package one cold dialogue request enters before its answer is published.

Run as a script, with `NEXUS_TEST_REDIS_URL` and `NEXUS_TEST_MONGO_URI` set: `python -m
tests.nexus.support.entered_files`.
"""

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import anyio

import nexus
from nexus.bootstrap import open_nexus
from nexus.config import Settings
from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Bus, Subscription
from nexus.core.wire import encode

_PACKAGE = Path(nexus.__file__).parent


@contextmanager
def entered_files() -> Iterator[list[str]]:
    """Files of the package in which a function is called while the context lasts, in the order of their first call."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{_PACKAGE}{os.sep}"):
            files.setdefault(str(Path(frame.f_code.co_filename).relative_to(_PACKAGE.parent)))

    found: list[str] = []
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        found += files


async def entered_by_cold_request(bus: Bus) -> list[str]:
    """The files that a request enters from its delivery to its answer, on a service at work on this bus."""
    for _ in range(2):
        # The first one pays for lazy imports; the second is of another owner.
        owner, run_id = f"ada_{uuid.uuid4().hex}", f"run_{uuid.uuid4().hex}"
        human = {"run_id": run_id, "owner_key": owner, "role": "HUMAN", "content": "hello"}
        content = {"id": run_id, "owner_key": owner, "history": [human], "metadata": {"user_profile": {}}}
        asked = encode(Message(run_id=run_id, owner_key=owner, role=Role.HUMAN, content=content))
        async with bus.subscribe(Topics.CONTEXT_BUILD_RESPONSE) as answers, anyio.create_task_group() as tasks:
            published = anyio.Event()
            tasks.start_soon(_hear, answers, published)
            await bus.publish(Topics.CONTEXT_BUILD_REQUEST, asked)
            with entered_files() as files:
                await published.wait()
    return files


async def _hear(answers: Subscription, published: anyio.Event) -> None:
    async for _ in answers:
        published.set()
        return


async def _main() -> None:
    settings = Settings.model_validate(
        {
            "bus": {"url": os.environ["NEXUS_TEST_REDIS_URL"], "channel_prefix": f"{uuid.uuid4().hex}."},
            "database": {"uri": os.environ["NEXUS_TEST_MONGO_URI"], "name": f"entered_{uuid.uuid4().hex[:12]}"},
            "system": {"http_port": 0},
        }
    )
    async with open_nexus(settings) as service:
        files = await entered_by_cold_request(service.bus)
    sys.stdout.write("".join(f"{number:3} {file}\n" for number, file in enumerate(files, 1)))


if __name__ == "__main__":
    anyio.run(_main)
