"""Traces of running services, as a real collector takes them (contract §16)."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from nexus.client import new_run
from nexus.connections import open_client
from nexus.core.tracing import Key
from tests.nexus.e2e.harness import (
    REQUEST,
    Environment,
    Requester,
    Service,
    a_request,
    behind,
    port_of,
    requesting,
    serving,
)
from tests.nexus.e2e.test_turns import is_by_model, with_model
from tests.nexus.support.embedding_behaviours import embedding
from tests.nexus.support.model_behaviours import good
from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.model_server import model_server
from tests.nexus.support.otlp_collector import OtlpCollector, Sent, otlp_collector, tree
from tests.nexus.support.proxy import proxied
from tests.nexus.support.redis_server import HOST
from tests.nexus.support.waiting import until

CANARY = "Xanadu"
PARENT = "00f067aa0ba902b7"
CONSUMER, CLIENT = 5, 3

DIALOGUE = """\
process context.build.request
  decode
  claim
  build
    gather
      read history
      read constraints
      read facts
      read profile
    assemble
      fit
    read beginning
    render
  record input
  conclude""".splitlines()


@pytest.fixture
def collector(environment: Environment) -> Iterator[OtlpCollector]:
    """A collector, to which the services of the test send what they have when they stop."""
    with otlp_collector() as listening:
        environment |= {
            "NEXUS_TRACING__OTLP_ENDPOINT": listening.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=canary",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        yield listening


def traced(text: str = f"Where is {CANARY}?", *, flags: str = "01", **metadata: Any) -> tuple[str, Any]:
    """A trace, and a request of it."""
    trace_id = uuid.uuid4().hex
    envelope = {"traceparent": f"00-{trace_id}-{PARENT}-{flags}", "tracestate": "vendor=a1"}
    return trace_id, a_request(text, owner=f"ada {CANARY}", metadata=envelope, run_metadata=metadata)


def traceparent_of(requester: Requester, request_id: str) -> str:
    """That of the answer."""
    return str(requester.answers[request_id][0][1]["metadata"]["traceparent"])


def lean(sent: Sent) -> dict[str, Any]:
    """The attributes that are not the same for every message."""
    return {name: value for name, value in sent.attributes.items() if name.startswith(("nexus.", "error."))}


async def stopped(service: Service) -> None:
    """Stop it; nothing but its own log was written."""
    assert await service.stop() == 0
    assert service.errors == []


async def test_a_request_from_delivery_to_answer(mode: str, environment: Environment, collector: OtlpCollector) -> None:
    """One tree of spans below the requester's, with numbers and names from closed sets, and no word of anybody."""
    plain, agent = traced(session_id=CANARY), traced(layout="agent", format="anthropic", session_id=CANARY)
    failed, unsampled = traced(layout=CANARY), traced(flags="00")
    hostile = a_request(f"{CANARY}!", metadata={"traceparent": CANARY * 1_000, "tracestate": [CANARY]})
    odd_state = a_request("hi", metadata={"traceparent": f"00-{uuid.uuid4().hex}-{PARENT}-01", "tracestate": CANARY})
    of_run = a_request("hi", run_metadata={"traceparent": f"00-{uuid.uuid4().hex}-{PARENT}-01"})
    requests = [plain[1], agent[1], failed[1], unsampled[1], hostile, odd_state, of_run]
    async with serving(environment) as service, requesting(environment) as requester:
        for request in requests:
            await requester.ask(request)
        parents = [traceparent_of(requester, request["id"]) for request in requests]
        # The same bytes again: the same answer, with the trace of the one that was built.
        await requester.publish(REQUEST, plain[1])
        await requester.ask(a_request("What came before it is in hand by now."))
        await stopped(service)
    first, again = [sent for sent in collector.of(plain[0]) if sent.name.startswith("process")]
    assert tree([sent for sent in collector.of(plain[0]) if sent.began < again.began]) == DIALOGUE
    assert (first.kind, first.parent_id, first.traceparent) == (CONSUMER, PARENT, parents[0])
    assert (
        first.attributes.items()
        >= {
            "messaging.system": "redis",
            "messaging.destination.name": "context.build.request",
            "messaging.message.id": plain[1]["id"],
        }.items()
    )
    described = lean(first)
    assert described.pop("nexus.answer.size") > 1_000
    assert described == {
        "nexus.run_id": plain[1]["run_id"],
        "nexus.bus.mode": mode,
        "nexus.deliveries": 1,
        "nexus.attempts": 1,
        "nexus.outcome": "success",
        "nexus.layout": "dialogue",
        "nexus.format": "openai",
        "nexus.messages": 5,
        "nexus.degraded": [],
    }
    assert lean(again)["nexus.outcome"] in {"answered", "announced"}
    (root,) = (sent for sent in collector.of(agent[0]) if sent.parent_id == PARENT)
    assert (lean(root)["nexus.layout"], lean(root)["nexus.format"]) == ("agent", "anthropic")
    assert lean(root)["nexus.tokens"] > 1_000
    assert {"read working_memory", "read turns"} <= {sent.name for sent in collector.of(agent[0])}
    (root,) = (sent for sent in collector.of(failed[0]) if sent.parent_id == PARENT)
    assert (root.failed, root.attributes["error.type"], root.message) == (True, "UNKNOWN_LAYOUT", "")
    assert collector.of(unsampled[0]) == []
    assert parents[3].startswith(f"00-{unsampled[0]}-")
    assert parents[3].endswith("-00")
    # What is no trace context begins a trace.
    (root,) = (sent for sent in collector.of(parents[4][3:35]) if sent.name.startswith("process"))
    assert root.parent_id == ""
    assert [parent[3:35] for parent in parents[5:]] == [
        odd_state["metadata"]["traceparent"][3:35],
        of_run["content"]["metadata"]["traceparent"][3:35],
    ]
    assert_lean(collector)
    assert (
        collector.spans[0].resource.items()
        >= {
            "service.name": "nexus",
            "deployment.environment.name": "test",
        }.items()
    )
    assert len(collector.spans[0].resource["service.instance.id"]) == 8
    assert collector.headers[0]["x-tenant"] == "canary"


def assert_lean(collector: OtlpCollector) -> None:
    """Attributes of the list alone, no event, and none of the words that were said."""
    assert {name for sent in collector.spans for name in sent.attributes} <= {*Key}
    assert {(sent.events, sent.message) for sent in collector.spans} == {(0, "")}
    assert not any(CANARY.encode() in body for body in collector.bodies)


async def test_another_replica_takes_over(streams: Environment, collector: OtlpCollector, mongo_uri: str) -> None:
    """A replica dies with a request: the other's spans are in the same trace, and say that it is the second attempt."""
    trace_id, request = traced(layout="agent")
    request["metadata"]["deadline_ms"] = 20_000
    settings = streams | {"NEXUS_TRACING__OTLP_ENDPOINT": collector.endpoint}
    async with proxied(HOST, port_of(mongo_uri)) as proxy, requesting(settings) as requester:
        async with serving(settings | behind(proxy) | {"NEXUS_DATABASE__TIMEOUT_MS": "15000"}) as dying:
            proxy.vanish()
            await requester.publish(REQUEST, request)
            await until(lambda: is_claimed(requester))
            dying.process.kill()
        async with serving(settings) as other:
            (content,) = await requester.answered(request["id"])
            await stopped(other)
    assert content["status"] == "success"
    (root,) = (sent for sent in collector.of(trace_id) if sent.parent_id == PARENT)
    assert lean(root).items() >= {"nexus.attempts": 2, "nexus.deliveries": 2, "nexus.outcome": "success"}.items()
    assert traceparent_of(requester, request["id"]) == root.traceparent


async def is_claimed(requester: Requester) -> bool:
    """Whether some replica has the request."""
    return bool(await requester.redis.keys(f"{requester.prefix}nexus:request:*"))


async def test_models_and_what_goes_on_in_the_background(
    environment: Environment, collector: OtlpCollector, mongo_janitor: Any, database_name: str
) -> None:
    """Calls of models are spans with their tokens; background work has traces of its own; a client goes on with its."""
    given = SpanContext(int(uuid.uuid4().hex, 16), int(PARENT, 16), is_remote=False, trace_flags=TraceFlags(1))
    turns = mongo_janitor[database_name]["turns"]
    vectors, summaries = embedding(), good()

    async def behave(exchange: Exchange) -> None:
        await (vectors if exchange.asked.path.endswith("/embeddings") else summaries)(exchange)

    async with model_server(behave) as model:
        settings = with_model(environment, model) | {
            "NEXUS_RECALL__EMBEDDER": "endpoint",
            "NEXUS_RECALL__BASE_URL": model.base_url,
            "NEXUS_RECALL__MODEL": "measure",
        }
        url, prefix = environment["NEXUS_BUS__URL"], environment["NEXUS_BUS__CHANNEL_PREFIX"]
        async with serving(settings) as service, open_client(url, channel_prefix=prefix) as client:
            with use_span(NonRecordingSpan(given)):
                run = new_run("ada", f"Where is {CANARY}?", layout="agent", recall=True)
                await client.build(run, timeout=20)
                await client.record_answer(run, f"{CANARY} is in the north.")
                await client.call_tool(run, "search_memory", {"query": CANARY}, call_id="c1")
            await until(lambda: summarised(turns))
            await stopped(service)
    assert_lean(collector)
    names = [line.strip() for line in tree(collector.of(f"{given.trace_id:032x}"))]
    assert Counter(name for name in names if name.startswith("process")) == {
        "process context.build.request": 1,
        "process tools.requests": 1,
    }
    assert names.index("read recall") < names.index("embeddings measure")
    (work,) = (sent for sent in collector.spans if sent.name == "background summarise")
    (call,) = (sent for sent in collector.of(work.trace_id) if sent.parent_id)
    assert (work.parent_id, call.parent_id, call.name, call.kind) == ("", work.span_id, "chat scribe", CLIENT)
    assert call.attributes["gen_ai.request.model"] == "scribe"
    assert call.attributes["gen_ai.usage.input_tokens"] > 0
    assert work.links == (f"{given.trace_id:032x}",)
    indexed = {sent.name for sent in collector.spans if not sent.parent_id}
    assert {"index words", "index meaning"} <= indexed


async def summarised(turns: Any) -> bool:
    """Whether a model has."""
    return any(map(is_by_model, turns.find()))


async def test_a_collector_that_is_away_or_hangs(environment: Environment, collector: OtlpCollector) -> None:
    """Answers come, one log line says so, and the service ends in its time with what could not be sent."""
    hanging = anyio.Event()
    statuses = iter([500, 400])

    def behave() -> int:
        if status := next(statuses, 0):
            return status
        hanging.set()
        time.sleep(8)
        return 200

    collector.behave = behave
    environment |= {
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "NEXUS_SYSTEM__DRAIN_SECONDS": "5",
        "OTEL_BSP_MAX_QUEUE_SIZE": "40",
    }
    environment |= {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "40"}
    async with serving(environment) as service, requesting(environment) as requester:
        await requester.ask(a_request())
        assert (await service.logged("collector_unavailable"))["reason"] == "status 500"
        while not hanging.is_set():
            assert (await requester.ask(a_request()))["status"] == "success"
        # More spans than have room.
        for _ in range(5):
            assert (await requester.ask(a_request()))["status"] == "success"
        await stopped(service)
    assert Counter(line["event"] for line in service.log if line["level"] == "warning").keys() >= {"traces_unsent"}
    assert sum(line["event"] == "collector_unavailable" for line in service.log) == 1


async def test_no_collector_and_none_wanted(environment: Environment) -> None:
    """Without a collector's address nothing is sent, and answers carry the requester's own trace."""
    trace_id, request = traced()
    async with serving(environment) as service, requesting(environment) as requester:
        await requester.ask(request)
        assert traceparent_of(requester, request["id"]) == f"00-{trace_id}-{PARENT}-01"
        other = a_request()
        await requester.ask(other)
        assert "traceparent" not in requester.answers[other["id"]][0][1]["metadata"]
        await stopped(service)
