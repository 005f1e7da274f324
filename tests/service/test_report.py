"""The state is made of what admission, the windows and the last readings say, on the clock of the wall."""

from dataclasses import dataclass, field

from service_fakes import GIB, MIB, FakeDevice, knobs_of, reading_of

from gpuwatch.service.core.admission import Admission
from gpuwatch.service.core.decisions import Ask, Grant
from gpuwatch.service.report import Reporter
from gpuwatch.service.requests import Requests
from gpuwatch.service.telemetry import CardSeen
from gpuwatch.storage.records import Outcome, Pressure, RequestRecord
from gpuwatch.storage.state import GpuStatus, ServiceState, State, Status, TelemetryState

WALL = 1e9
"""The wall's clock is this far ahead of the monotonic one."""


@dataclass
class Desk:
    now_s: float = 1000.0
    rows: list[RequestRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        knobs = knobs_of({"lanes.default.concurrency": 1})
        self.admission = Admission(knobs, [0])
        self.seen = {0: CardSeen()}
        self.requests = Requests(
            run_id=1,
            first_seq=1,
            clock=self.clock,
            wall=self.wall,
            put=self.rows.append,
            tell=lambda _record: None,
            lanes=knobs.lanes,
        )
        self.reporter = Reporter(
            service=ServiceState(name="me", started_at=self.wall()),
            admission=self.admission,
            requests=self.requests,
            infos={0: FakeDevice().info},
            seen=self.seen,
            clock=self.clock,
            wall=self.wall,
        )

    def clock(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return WALL + self.now_s

    def read(self, used_bytes: int = 0) -> None:
        reading = reading_of(used_bytes=used_bytes)
        self.admission.observe(self.now_s, reading)
        self.seen[0].take(self.now_s, reading)

    def state(self) -> State:
        return self.reporter.state(
            models=(),
            knobs_version=4,
            last_change=None,
            last_snapshot=None,
            telemetry=TelemetryState(),
            loop_lag_ms=1.5,
        )


def test_before_the_first_reading_nothing_is_claimed() -> None:
    state = Desk().state()
    (gpu,) = state.gpus
    assert (gpu.status, gpu.read_age_s, gpu.used_bytes, gpu.capacity_bytes) == (GpuStatus.STALE, None, 0, 0)
    assert (state.service.status, state.knobs_version, state.service.loop_lag_ms) == (Status.DEGRADED, 4, 1.5)


def test_a_reading_is_shown_with_its_age_and_then_since_when_it_is_stale() -> None:
    desk = Desk()
    desk.read(used_bytes=100 * MIB)
    desk.now_s += 1.5
    (gpu,) = desk.state().gpus
    assert (gpu.status, gpu.read_age_s, gpu.used_bytes, gpu.stale_since) == (GpuStatus.OK, 1.5, 100 * MIB, None)
    assert gpu.available_bytes == gpu.capacity_bytes > 0
    desk.now_s += 10
    (gpu,) = desk.state().gpus
    assert (gpu.status, gpu.stale_since) == (GpuStatus.STALE, WALL + 1002.0)


def test_since_is_when_the_status_changed_not_when_it_was_asked() -> None:
    desk = Desk()
    desk.read()
    first = desk.state().service
    desk.now_s += 1
    assert desk.state().service.since == first.since
    desk.read(used_bytes=int(0.9 * GIB))
    high = desk.state()
    assert (high.service.status, high.service.since) == (Status.DEGRADED, desk.wall())
    assert (high.gpus[0].pressure, high.gpus[0].pressure_since) == (Pressure.HIGH, desk.wall())
    assert high.service.uptime_s == 1.0
    desk.now_s += 1
    desk.read(used_bytes=int(0.9 * GIB))
    assert desk.state().service.since == high.service.since
    desk.admission.drain()
    assert desk.state().service.status is Status.DRAINING


def test_what_holds_a_slot_is_listed_with_its_start_and_whether_anyone_waits_for_it() -> None:
    desk = Desk()
    desk.read()
    entry = desk.requests.open(request_id="a", lane="default", model="m")
    (grant,) = desk.admission.ask(desk.now_s, Ask(ticket=entry.seq, lane="default", price_bytes=MIB))
    assert isinstance(grant, Grant)
    desk.requests.started(entry)
    waiter = desk.requests.open(request_id="b", lane="default", model="m")
    desk.admission.ask(desk.now_s, Ask(ticket=waiter.seq, lane="default", price_bytes=2 * MIB))
    desk.now_s += 2
    desk.admission.orphan(desk.now_s, entry.seq)
    state = desk.state()
    (run,) = state.in_flight
    assert (run.id, run.request_id, run.price_bytes, run.orphan) == (entry.seq, "a", MIB, True)
    assert run.started_at == WALL + 1000.0
    (lane,) = state.lanes
    assert (lane.in_flight, lane.orphans, lane.waiting, lane.oldest_wait_ms) == (1, 1, 1, 2000.0)
    assert (lane.head_price_bytes, lane.blocked_by) == (2 * MIB, "slots")
    assert state.gpus[0].promised_bytes == MIB
    assert state.verdict.startswith("default waits for SLOTS")


def test_outcomes_reach_their_lane() -> None:
    desk = Desk()
    for outcome, status in ((Outcome.OK, 200), (Outcome.QUEUE_FULL, 429)):
        entry = desk.requests.open(request_id="a", lane="default", model="m")
        desk.now_s += 0.25
        desk.requests.end(entry, outcome, status)
    (lane,) = desk.state().lanes
    assert (lane.ok_60s, lane.refused_60s, lane.p50_60s_ms) == (1, {"queue-full": 1}, 250.0)
    assert lane.outcomes == {"ok": 1, "queue-full": 1}
    desk.now_s += 61
    (lane,) = desk.state().lanes
    assert (lane.ok_60s, lane.outcomes["ok"], lane.p50_60s_ms) == (0, 1, None)
