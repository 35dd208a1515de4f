"""Reading the past on a real store transfers nothing that is not needed (contract §4.3)."""

from typing import Any

from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.core.ports import Past, Row
from nexus.services.history.merge import newest
from nexus.services.history.reader import read_past
from tests.nexus.support.proxy import proxied
from tests.nexus.support.rows import row

Janitor = MongoClient[dict[str, Any]]


async def read(janitor: Janitor, database: str, rows: list[Row]) -> tuple[Past, int]:
    """The past of `o`, with excerpts of 2,000 characters, and how many bytes came from the store."""
    janitor[database].messages.insert_many([dict(each) for each in rows])
    async with proxied(*(janitor.address or ("", 0))) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, database, timeout_ms=20_000) as store:
            past = await read_past(store, "o", messages=20, excerpt_chars=1_000)
        return past, proxy.received


async def test_results_of_tools_stay_where_they_are(mongo_janitor: Janitor, prepared_database: str) -> None:
    """Ten runs with sixty results of 100 KB each are read without transferring any of them."""
    rows = []
    for number in range(10):
        run = {"run_id": f"r{number}"}
        rows += [row(number * 10, **run), row(number * 10 + 9, role="AI", **run)]
        rows += [row(number * 10 + n, role="TOOL", content="x" * 100_000, **run) for n in range(1, 7)]
    past, received = await read(mongo_janitor, prepared_database, rows)
    assert len(newest(past.rows, 20).utterances) == 20
    assert received < 200_000


async def test_the_middle_of_long_answers_stays_where_it_is(mongo_janitor: Janitor, prepared_database: str) -> None:
    """Of answers of 1 MB only the ends are transferred."""
    rows = [row(number, role="AI", content=f"{number}" + "x" * 1_000_000 + f"{number}") for number in range(10)]
    past, received = await read(mongo_janitor, prepared_database, rows)
    assert received < 200_000
    assert {len(each["content"]) for each in past.rows} == {2_000}
