"""The table of refusals against the contract's, and how a figure of the core becomes a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.decisions import Refuse
from gpuwatch.service.errors import REFUSALS, Refused, refused
from gpuwatch.storage.records import BlockedBy, Outcome

CONTRACT = {
    "queue-full": (429, True),
    "no-room": (429, True),
    "queue-timeout": (503, True),
    "watermark": (503, True),
    "breaker-open": (503, True),
    "draining": (503, True),
    "shutdown": (503, True),
    "gpu-stale": (503, True),
    "gpu-lost": (503, True),
    "too-large": (413, False),
    "body-too-large": (413, False),
    "run-timeout": (504, False),
    "out-of-memory": (503, False),
    "bad-input": (400, False),
    "unknown-model": (404, False),
    "unknown-lane": (400, False),
    "model-unavailable": (503, True),
    "model-error": (500, False),
}
LATER = {"expected-wait", "gpu-fatal", "worker-lost"}
NO_REFUSALS = {"ok", "client-gone", "crashed"}
BY_CORE = ["queue-full", "no-room", "queue-timeout", "watermark", "breaker-open", "draining", "shutdown", "gpu-stale"]


def test_the_table_is_the_contracts() -> None:
    assert {kind.value: (row.status, row.retry) for kind, row in REFUSALS.items()} == CONTRACT
    assert {outcome.value for outcome in Outcome} == CONTRACT.keys() | LATER | NO_REFUSALS


@pytest.mark.parametrize("reason", [*BY_CORE, "gpu-lost", "too-large"])
@pytest.mark.parametrize("known", [True, False])
def test_every_refusal_of_the_core_has_a_sentence_whatever_is_known(reason: str, *, known: bool) -> None:
    figures = {"price_bytes": 5, "available_bytes": 3, "capacity_bytes": 4, "waiting": 2} if known else {}
    decision = Refuse(ticket=1, reason=Outcome(reason), blocked_by=BlockedBy.BYTES if known else None, **figures)
    found = refused(decision, "image")
    assert found.detail == str(found)
    assert "{" not in found.detail
    assert found.figures.keys() == {"lane", *(figures.keys()), *(["blocked_by"] if known else [])}
    assert found.status == CONTRACT[reason][0]


def test_a_time_out_says_how_long_it_waited_and_for_what() -> None:
    decision = Refuse(ticket=1, reason=Outcome.QUEUE_TIMEOUT, blocked_by=BlockedBy.BYTES, waited_s=10.04)
    assert refused(decision, "image").detail == "It waited 10.0 s in lane image for bytes."


@given(st.sampled_from(list(REFUSALS)), st.none() | st.floats(0, 1e6))
def test_retry_after_is_whole_seconds_at_least_one_and_never_too_early(reason: Outcome, after_s: float | None) -> None:
    found = Refused(reason, "x", retry_after_s=after_s)
    if not REFUSALS[reason].retry:
        assert found.retry_after_header is None
        assert found.retry_after_s is None
        return
    assert found.retry_after_header is not None
    assert int(found.retry_after_header) >= max(1.0, after_s or 0.0)
    assert int(found.retry_after_header) < (after_s or 0.0) + 2
