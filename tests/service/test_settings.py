"""Configuration: file, environment, command line, later wins; and every bad key is named in one line."""

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from gpuwatch.service.settings import Settings, SettingsError


@contextmanager
def environment(**given: str) -> Iterator[None]:
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("GPUWATCH_")]:
        del os.environ[name]
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def written(path: Path, text: str) -> Path:
    file = path / "gpuwatch.toml"
    file.write_text(text)
    return file


def test_later_sources_win_key_by_key(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        port = 1
        admin_port = 2
        host = "from-file"
        [inference]
        max_body_bytes = "1MiB"
        lane_header = true
        [knobs]
        "watermark.high" = 0.7
        "watermark.low" = 0.1
        """,
    )
    knobs = '{"watermark.high": 0.8}'
    with environment(
        GPUWATCH_PORT="3", GPUWATCH_ADMIN_PORT="4", GPUWATCH_INFERENCE__MAX_BODY_BYTES="2M", GPUWATCH_KNOBS=knobs
    ):
        found = Settings.load(file, {"port": 5, "gpu": None, "targets": []})
    assert (found.port, found.admin_port, found.host, found.gpu) == (5, 4, "from-file", "auto")
    assert found.inference.max_body_bytes == 2 << 20
    assert found.inference.lane_header
    assert found.knob_values == {"watermark.high": 0.8, "watermark.low": 0.1}


def test_the_file_in_the_working_directory_is_read_and_none_is_fine(tmp_path: Path) -> None:
    with chdir(tmp_path), environment():
        assert Settings.load().port == 8000
        written(tmp_path, 'name = "here"')
        assert Settings.load().name == "here"


def test_knobs_may_be_written_dotted_or_nested_in_file_and_environment(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [knobs]
        "budget.margin_bytes" = "64MiB"
        lanes.image.concurrency = 3
        [knobs.watermark]
        high = 0.9
        """,
    )
    with environment(GPUWATCH_KNOBS__WATERMARK__HIGH="0.8", GPUWATCH_KNOBS__BUDGET__MAX_BYTES="1G"):
        values = Settings.load(file).knob_values
    assert values == {
        "budget.margin_bytes": "64MiB",
        "budget.max_bytes": "1G",
        "lanes.image.concurrency": 3,
        "watermark.high": 0.8,
    }


def test_what_is_higher_wins_however_it_is_written(tmp_path: Path) -> None:
    file = written(tmp_path, '[knobs]\n"watermark.high" = 0.7')
    with environment(GPUWATCH_KNOBS__WATERMARK__HIGH="0.8"):
        assert Settings.load(file).knob_values == {"watermark.high": 0.8}


def test_sizes_have_units_and_models_their_parts(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [sim]
        context_bytes = "300MiB"
        neighbour_bytes = 1000
        [models.face]
        target = "builtin:detector"
        lane = "image"
        """,
    )
    with environment():
        found = Settings.load(file)
    assert (found.sim.context_bytes, found.sim.neighbour_bytes) == (300 << 20, 1000)
    assert (found.models["face"].target, found.models["face"].lane) == ("builtin:detector", "image")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot = 1", ["prot"]),
        ("port = 70000", ["port"]),
        ('port = "x"\nadmin_port = -1', ["port", "admin_port"]),
        ("[inference]\nlane_heder = true", ["inference.lane_heder"]),
        ('[inference]\nmax_body_bytes = "many"', ["inference.max_body_bytes", "not a size"]),
        ("[inference]\nmax_body_bytes = -1", ["inference.max_body_bytes"]),
        ('log_level = "loud"', ["log_level"]),
        ('[models.a]\nlane = "x"', ["models.a.target"]),
        ("port = ", ["gpuwatch.toml"]),
        ("grace_s = nan", ["grace_s"]),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_cannot_be_used_is_named_in_one_line(tmp_path: Path, text: str, named: list[str]) -> None:
    with environment(), pytest.raises(SettingsError) as bad:
        Settings.load(written(tmp_path, text))
    assert "\n" not in str(bad.value)
    assert all(name in str(bad.value) for name in named)


def test_a_bad_environment_is_named_too(tmp_path: Path) -> None:
    for given in ({"GPUWATCH_PORT": "x"}, {"GPUWATCH_KNOBS": "{"}, {"GPUWATCH_INFERENCE__PORT": "1"}):
        with chdir(tmp_path), environment(**given), pytest.raises(SettingsError) as bad:
            Settings.load()
        assert "\n" not in str(bad.value)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, tmp_path / "binary.toml"):
        with environment(), pytest.raises(SettingsError, match=str(path)):
            Settings.load(path)


def test_settings_do_not_change_and_can_be_stored() -> None:
    with environment():
        found = Settings.load(None, {"data_dir": Path("/somewhere")})
    with pytest.raises(ValueError, match="frozen"):
        found.port = 1
    assert found.model_dump(mode="json")["data_dir"] == "/somewhere"
