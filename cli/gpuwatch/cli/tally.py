"""The demo's account: what the client saw against what the database holds, and the summary's lines. Pure.

The two must be equal, request by request: every request that reached the service has exactly one record with the same
outcome. What broke on the way (a transport error) has no outcome and is shown beside it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuwatch.cli.text import counts, milliseconds, moment, pairs, safe, share, size, table
from gpuwatch.cli.traffic import Summary
from gpuwatch.storage.records import RequestRecord
from gpuwatch.storage.state import SnapshotHead, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Requests by outcome, twice, and how many of them the two sides name differently."""

    client: Mapping[str, int]
    database: Mapping[str, int]
    differing: int
    errors: Mapping[str, int]
    not_sent: int

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same requests with the same outcomes."""
        return not self.differing and self.client == self.database

    @property
    def ok(self) -> int:
        """Requests that were answered."""
        return self.client.get("ok", 0)


def tally(summary: Summary, records: Iterable[RequestRecord], *, prefix: str) -> Tally:
    """Compare the client's answers with the records whose request id begins with ``prefix``."""
    stored = [(r.request_id, r.outcome.value) for r in records if r.request_id.startswith(f"{prefix}-")]
    seen = [(request_id, outcome) for request_id, outcome in summary.by_id.items() if ": " not in outcome]
    left_over = Counter(seen)
    left_over.subtract(stored)
    return Tally(
        client=dict(Counter(outcome for _, outcome in seen)),
        database=dict(Counter(outcome for _, outcome in stored)),
        differing=sum(abs(count) for count in left_over.values()),
        errors=summary.errors,
        not_sent=summary.not_sent,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most of a card that was used at once, and the most that others held; bytes."""

    used_bytes: int
    total_bytes: int
    foreign_bytes: int


def summary_lines(
    counted: Tally,
    summary: Summary,
    *,
    card: str,
    simulated: bool,
    peak: Peak | None,
    snapshots: Sequence[SnapshotHead],
    blocked: Mapping[str, int],
    neighbour: str | None,
    database: str,
) -> list[str]:
    """Give the demo's last page."""
    mark = " (SIMULATED)" if simulated else ""
    others = "" if peak is None else f", others' part up to {size(peak.foreign_bytes)}"
    used = (
        "not recorded"
        if peak is None
        else f"{size(peak.used_bytes)} of {size(peak.total_bytes)} ({share(peak.used_bytes, peak.total_bytes)})"
        f"{mark}{others}"
    )
    return [
        "",
        f"SUMMARY  {safe(card)}{'' if 'SIMULATED' in card else mark}",
        *_outcomes(counted),
        "",
        *pairs(
            [
                (
                    "latency",
                    f"p50 {milliseconds(summary.p50_ms)}, p99 {milliseconds(summary.p99_ms)} (ok, as the client saw)",
                ),
                ("waited for", counts(blocked, empty="nothing")),
                ("peak VRAM", used),
                *([("neighbour", neighbour)] if neighbour else []),
                ("snapshots", str(len(snapshots)) if snapshots else "none"),
                *(
                    (f"  #{s.id}", f"{moment(s.at)}  {s.trigger.value}  {s.cause.value}: {safe(s.headline)}")
                    for s in snapshots
                ),
                ("database", database),
            ],
            indent=0,
        ),
    ]


def second_line(second: int, state: State) -> str:
    """Give the demo's line for one second: in flight, waiting, answers, refusals, the card, the last snapshot."""
    refused: Counter[str] = Counter()
    for lane in state.lanes:
        refused.update({name: count for name, count in lane.outcomes.items() if name != "ok"})
    heads = ", ".join(sorted({lane.blocked_by.value for lane in state.lanes if lane.blocked_by}))
    words = [
        f"{second:3} s",
        f"in flight {sum(lane.in_flight for lane in state.lanes):2}",
        f"waiting {sum(lane.waiting for lane in state.lanes):2}" + (f" for {heads}" if heads else ""),
        f"ok {sum(lane.outcomes.get('ok', 0) for lane in state.lanes):3}",
        f"refused: {counts(refused)}",
    ]
    for gpu in state.gpus:
        mark = " SIMULATED" if gpu.simulated else ""
        words.append(
            f"used {size(gpu.used_bytes)} of {size(gpu.total_bytes)}{mark}, "
            f"promised {size(gpu.promised_bytes)} of {size(gpu.capacity_bytes)}"
        )
    if state.last_snapshot is not None:
        words.append(f"snapshot #{state.last_snapshot.id} {state.last_snapshot.cause.value}")
    return "  ".join(words)


def _outcomes(counted: Tally) -> list[str]:
    names = sorted({*counted.client, *counted.database}, key=lambda n: (n != "ok", -counted.client.get(n, 0), n))
    rows = [(name, str(counted.client.get(name, 0)), str(counted.database.get(name, 0))) for name in names]
    rows.append(("all", str(sum(counted.client.values())), str(sum(counted.database.values()))))
    lines = table(("requests", "client", "database"), rows, right=(1, 2))
    lines[-1] += "   equal, request by request" if counted.equal else f"   NOT EQUAL: {counted.differing} differ"
    if counted.errors:
        lines.append(f"connections that broke: {counts(counted.errors)}")
    if counted.not_sent:
        lines.append(f"not sent, too many in flight at the client: {counted.not_sent}")
    return lines
