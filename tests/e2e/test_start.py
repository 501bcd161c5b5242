"""How the server's process starts."""

from __future__ import annotations

import pytest
from served import process


@pytest.mark.parametrize(("flags", "n_warnings"), [(("twilio.auth_token=x", "server.open=true"), 1), ((), 0)])
def test_a_server_that_is_open_on_purpose_warns_once(flags: tuple[str, ...], n_warnings: int) -> None:
    given = [part for flag in flags for part in ("--set", flag)]
    with process(*given) as (served, _):
        served.terminate()
        _, log = served.communicate(timeout=20)
    assert served.returncode == 0 and log.count('"open_to_everyone"') == n_warnings, log
