"""What is recorded of the effective answer to a build request (contract §13)."""

import time
from datetime import timedelta
from typing import Literal

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import DOCTOR, Topics, to_milliseconds, utc_now
from nexus.core.records import BuildRecord, RecordMode
from nexus.core.wire import EnvelopeError
from nexus.services.context.builder import Built
from nexus.services.records.service import BuildRecords
from nexus.services.requests.envelope import IncomingRequest


class AnswerRecorder:
    """Has the effective answers of builds recorded, but for those to strangers, who may use an owner's name."""

    def __init__(self, records: BuildRecords, *, mode: RecordMode, version: str) -> None:
        self._records = records
        self._mode: Literal["manifest", "full"] = "full" if mode == "full" else "manifest"
        self._version = version

    def record(self, request: IncomingRequest, answer: bytes, error: RequestError | None, built: Built | None) -> None:
        """Have an answer recorded. Returns at once."""
        if request.delivery.topic != Topics.CONTEXT_BUILD_REQUEST or request.ids.owner_key in {"", DOCTOR}:
            return
        if error and error.code in {ErrorCode.UNAUTHENTICATED, ErrorCode.ID_CONFLICT}:
            return
        if request.signing and isinstance(request.asked, EnvelopeError):
            # Its signature was not read.
            return
        asked = built.request if built else None
        content = built.result if built and isinstance(built.result, dict) else {}
        record = BuildRecord(
            owner_key=request.ids.owner_key,
            request_id=request.ids.id,
            run_id=request.ids.run_id,
            session_id=asked.session_id if asked else "",
            outcome=error.code.value if error else "success",
            reason=error.message if error else "",
            layout=asked.layout if asked else "",
            form=asked.form if asked else "",
            answered_at=to_milliseconds(utc_now()),
            size=len(answer),
            settings=built.settings if built else "",
            version=self._version,
            mode=self._mode,
            agent=f"{asked.agent.kind} {asked.agent.id if asked.agent.kind == 'sub' else ''}".strip() if asked else "",
        )
        taken = timedelta(seconds=time.monotonic() - request.arrived_at)
        self._records.offer(record, answer, content.get("context", {}), begun_at=record.answered_at - taken)
