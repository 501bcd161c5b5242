"""The Autobahn test suite against the class of our sockets: a part of `make autobahn`."""

from __future__ import annotations

import asyncio

import pytest

from torture.autobahn import BY_THE_LIBRARY, PASSED, REFUSED_BY_LIMIT, NoAutobahn, behaviours, python2, report

pytestmark = [pytest.mark.slow, pytest.mark.peer]


@pytest.fixture(scope="module")
def suite() -> None:
    try:
        python2()
    except NoAutobahn as error:
        pytest.skip(str(error))


def test_the_suite_finds_no_mistake(suite: None) -> None:
    found = asyncio.run(behaviours(["1.1.*", "2.*", "3.*", "4.*", "5.*", "6.2.*", "6.6.*", "7.*", "10.*"]))
    assert len(found) > 80
    assert {case: said for case, said in found.items() if said not in PASSED and case not in BY_THE_LIBRARY} == {}


def test_the_report_tells_what_was_refused_from_what_is_wrong() -> None:
    told = report(
        {"1.1.1": "OK", "3.2": "NON-STRICT", REFUSED_BY_LIMIT[0]: "FAILED", "7.1.5": "FAILED", "5.1": "FAILED"}
    )
    assert told["failed"] == {"5.1": "FAILED"}
    assert told["refused_by_limit"]["cases"] == [REFUSED_BY_LIMIT[0]] and list(told["by_the_library"]) == ["7.1.5"]
    assert told["cases"] == 5 and told["behaviours"] == {"FAILED": 3, "NON-STRICT": 1, "OK": 1}
