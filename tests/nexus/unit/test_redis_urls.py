"""The URLs that `bus.url` allows, and faults that do not repeat them."""

import pytest

from nexus.adapters.redis.urls import RedisUrl, parse_redis_url
from nexus.core.errors import ConfigError

SECRET = "hunter2-canary"
LOGIN = {"username": "us:er", "password": "p@ss"}


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("redis://", RedisUrl("single", (("localhost", 6379),))),
        ("redis://h", RedisUrl("single", (("h", 6379),))),
        ("redis://h:1/3", RedisUrl("single", (("h", 1),), database=3)),
        ("redis://[::1]:1?db=2", RedisUrl("single", (("::1", 1),), database=2)),
        ("redis://:p%40ss@h", RedisUrl("single", (("h", 6379),), login={"password": "p@ss"})),
        ("unix:///run/redis.sock?db=2", RedisUrl("single", path="/run/redis.sock", database=2)),
        ("unix://us%3Aer:p%40ss@/a%20b", RedisUrl("single", path="/a b", login=LOGIN)),
        (
            "rediss://us%3Aer:p%40ss@h?ssl_ca_certs=/a%20b&ssl_check_hostname=no",
            RedisUrl(
                "single",
                (("h", 6379),),
                secure=True,
                login=LOGIN,
                tls={"ssl_ca_certs": "/a b", "ssl_check_hostname": False},
            ),
        ),
        (
            "redis+sentinel://us%3Aer:p%40ss@a,b:1/main/2?sentinel_username=s&sentinel_password=t%25",
            RedisUrl(
                "sentinel",
                (("a", 26379), ("b", 1)),
                service="main",
                database=2,
                login=LOGIN,
                sentinel_login={"username": "s", "password": "t%"},
            ),
        ),
        ("rediss+sentinel://[::1]:5/a%2Fb", RedisUrl("sentinel", (("::1", 5),), service="a/b", secure=True)),
        ("redis+cluster://a:1,b", RedisUrl("cluster", (("a", 1), ("b", 6379)))),
        (
            "rediss+cluster://a/?ssl_cert_reqs=none",
            RedisUrl("cluster", (("a", 6379),), secure=True, tls={"ssl_cert_reqs": "none"}),
        ),
    ],
)
def test_what_is_allowed(url: str, parts: RedisUrl) -> None:
    """Hosts, login, service, database and options, with what stands for them when they are missing."""
    assert parse_redis_url(url) == parts


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "begins with one of redis://"),
        ("127.0.0.1:6379", "begins with one of redis://"),
        (f"http://:{SECRET}@h", "redis+sentinel://"),
        (f"redis+cluster+tls://:{SECRET}@h", "rediss+cluster://"),
        (f"redis://:{SECRET}@[h", "cannot be read"),
        (f"redis://:{SECRET}@h:x", "a port from 1 to 65535"),
        (f"redis://:{SECRET}@h:0", "a port from 1 to 65535"),
        (f"redis+cluster://:{SECRET}@h:1,i:70000", "a port from 1 to 65535"),
        (f"redis://:{SECRET}@h/x", "a number is allowed"),
        (f"redis://:{SECRET}@h/1/2", "path that is too long"),
        (f"redis://:{SECRET}@h,i", "names several hosts"),
        (f"redis+cluster://:{SECRET}@h/1", "a cluster has no databases"),
        (f"redis+cluster://:{SECRET}@", "names no host"),
        (f"redis+cluster://:{SECRET}@h,", "names no host"),
        (f"redis+sentinel://:{SECRET}@h", "names no service"),
        (f"redis+sentinel://:{SECRET}@h/s/x", "a number is allowed"),
        (f"unix://:{SECRET}@", "names no socket"),
        (f"redis://h?password={SECRET}", "unknown option; allowed here: db"),
        (f"redis://h?{SECRET}", "cannot be read"),
        ("redis://h?ssl_ca_certs=/x", "those for TLS need rediss"),
        ("redis+cluster://h?db=1", "unknown option; allowed here: none"),
        (f"redis+cluster://h?sentinel_password={SECRET}", "unknown option"),
        (f"rediss://h?ssl_cert_reqs={SECRET}", "none, optional or required"),
        (f"rediss://h?ssl_check_hostname={SECRET}", "true or false"),
    ],
)
def test_what_is_refused(url: str, said: str) -> None:
    """One line says what is allowed and repeats nothing."""
    with pytest.raises(ConfigError) as raised:
        parse_redis_url(url)
    text = str(raised.value)
    assert text.startswith("bus.url: ")
    assert said in text
    assert SECRET not in text
    assert "\n" not in text


def test_a_repr_holds_no_password() -> None:
    """Neither that of Redis nor that of Sentinel."""
    url = f"redis+sentinel://:{SECRET}@h/s?sentinel_password={SECRET}"
    assert SECRET not in repr(parse_redis_url(url))
