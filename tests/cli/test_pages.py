"""The state as one screen of lines."""

from dataclasses import replace

from cli_fakes import NOW, STATE

from gpuwatch.cli.pages import status_lines
from gpuwatch.cli.text import cells
from gpuwatch.storage.state import GpuState, GpuStatus, State, TelemetryState


def page(state: State = STATE) -> str:
    return "\n".join(status_lines(state, now=NOW))


def test_a_screen_with_one_card_and_one_lane_fits_a_terminal() -> None:
    lines = status_lines(STATE, now=NOW)
    assert len(lines) <= 24
    assert max(cells(line) for line in lines) <= 120


def test_everything_that_the_operator_asks_first_is_there() -> None:
    shown = page()
    for words in (
        "DEGRADED", "SIMULATED", "the breaker of GPU 0 is open (for 12 s)", "image waits for bytes, not slots",
        "512 MiB of 640 MiB (80 %)", "whisper", "60.0 MiB of capacity 170 MiB, 110 MiB available", "breaker open",
        "2/4", "7/16", "4.90 s", "bytes", "queue-timeout 3", "v3 2m 05s ago by ann@box",
        "lanes.image.concurrency 6 -> 4", "#2 30 s ago, watermark, other-process: whisper took 272M", "none lost",
    ):  # fmt: skip
        assert words in shown


def test_names_from_outside_cannot_drive_the_terminal() -> None:
    assert "\x1b" not in page()


def test_an_empty_state_is_shown_too() -> None:
    assert "last snapshot  none" in page(State())


def test_a_lost_card_and_lost_rows_are_said_loudly() -> None:
    gpu = replace(STATE.gpus[0], status=GpuStatus.LOST)
    shown = page(replace(STATE, gpus=(gpu,), telemetry=TelemetryState(dropped=5, last_error="disk full")))
    assert "LOST" in shown
    assert "5 LOST; last error: disk full" in shown


def test_figures_that_are_not_known_are_dashes() -> None:
    assert "allocated -" in page(State(gpus=(GpuState(index=0, name="card"),)))
