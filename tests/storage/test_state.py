from hypothesis import given
from storage_strategies import of

from gpuwatch.storage import codec
from gpuwatch.storage.records import OomSnapshot
from gpuwatch.storage.state import SnapshotHead, State


@given(of(State))
def test_a_state_comes_back_from_its_json_as_it_was(state: State) -> None:
    assert codec.build(State, codec.loads(codec.dumps(state))) == state


def test_a_state_of_another_version_is_understood_as_far_as_it_goes() -> None:
    told = {
        "at": 1.0,
        "service": {"name": "svc", "mood": "sunny"},
        "gpus": [{"index": 0, "warp_bytes": 3}],
        "lanes": [{"name": "image", "limit": 2}],
        "dreams": [],
    }
    state = codec.build(State, told)
    assert (state.service.name, state.gpus[0].index, state.lanes[0].limit) == ("svc", 0, 2)
    assert state.telemetry.dropped == 0


def test_a_snapshots_head_is_made_of_the_snapshots_own_fields_in_their_order() -> None:
    whole = codec.fields(OomSnapshot)
    head = codec.fields(SnapshotHead)
    assert head == tuple(name for name in whole if name not in {"run_id", "payload", "segments"})
