"""Which files of the package one cold dialogue request enters before its answer is published.

Run as a script for the real adapters: `python -m tests.nexus.support.entered_files`, with `NEXUS_TEST_REDIS_URL` and
`NEXUS_TEST_MONGO_URI` set.
"""

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
from pydantic import SecretStr

import nexus
from nexus.bootstrap import open_nexus
from nexus.config import Settings
from nexus.core.models import Message, Role, Topics
from nexus.core.ports import Bus
from nexus.core.wire import encode

_PACKAGE = Path(nexus.__file__).parent


class EnteredFiles:
    """Files of the package in which a function is called while the context lasts, in the order of their first call."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._known: dict[Any, bool] = {}
        self._before: Callable[..., Any] | None = None

    def __enter__(self) -> list[str]:
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self.files

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: FrameType, event: str, _arg: object) -> None:
        if event != "call" or frame.f_code in self._known:
            return
        self._known[frame.f_code] = True
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE):
            name = str(file.relative_to(_PACKAGE.parent))
            if name not in self.files:
                self.files.append(name)


async def entered_by_cold_request(bus: Bus) -> list[str]:
    """The files that a request enters from its delivery to its answer, on a service at work on this bus."""
    for _ in range(2):
        # The first one loads what is loaded once; the second is of another owner.
        owner, run_id = f"ada_{uuid.uuid4().hex}", f"run_{uuid.uuid4().hex}"
        human = {"run_id": run_id, "owner_key": owner, "role": "HUMAN", "content": "hello"}
        content = {"id": run_id, "owner_key": owner, "history": [human], "metadata": {"user_profile": {}}}
        asked = encode(Message(run_id=run_id, owner_key=owner, role=Role.HUMAN, content=content))
        async with bus.subscribe(Topics.CONTEXT_BUILD_RESPONSE) as answers:
            await anyio.sleep(0.3)
            published = anyio.Event()

            async def hear(published: anyio.Event = published, answers: Any = answers) -> None:
                async for _ in answers:
                    published.set()
                    return

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hear)
                await bus.publish(Topics.CONTEXT_BUILD_REQUEST, asked)
                with EnteredFiles() as files:
                    await published.wait()
    return files


async def _main() -> None:
    settings = Settings()
    bus = settings.bus.model_copy(
        update={"url": SecretStr(os.environ["NEXUS_TEST_REDIS_URL"]), "channel_prefix": f"{uuid.uuid4().hex}."}
    )
    database = settings.database.model_copy(
        update={"uri": SecretStr(os.environ["NEXUS_TEST_MONGO_URI"]), "name": f"entered_{uuid.uuid4().hex[:12]}"}
    )
    system = settings.system.model_copy(update={"http_port": 0})
    async with open_nexus(settings.model_copy(update={"bus": bus, "database": database, "system": system})) as service:
        files = await entered_by_cold_request(service.bus)
    sys.stdout.write("".join(f"{number:3} {file}\n" for number, file in enumerate(files, 1)))


if __name__ == "__main__":
    anyio.run(_main)
