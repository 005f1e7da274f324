"""From settings to edges, with a sentence where there are none."""

import pytest

from gpuwatch.service import build
from gpuwatch.service.settings import Settings, SettingsError
from gpuwatch.storage.records import Source

MIB = 1 << 20


def test_a_simulated_card_has_the_size_that_was_written() -> None:
    (card,) = build.devices(Settings.load(None, {"gpu": "sim:256MiB", "sim": {"context_bytes": "8MiB"}})).values()
    assert (card.info.index, card.info.total_bytes, card.info.source) == (0, 256 * MIB, Source.SIM)
    assert card.info.simulated
    card.close()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "choose auto"),
        ("gpu0", "choose auto"),
        ("sim:", "is not a size"),
        ("sim:1MiB", "64 MiB"),
        ("sim:1GiB,1GiB", "one simulated card"),
        ("sim:-5", "is not a size"),
        ("cuda:77", "sim:"),
        ("cuda:x", "sim:"),
    ],
)
def test_what_is_no_card_says_what_to_choose(spec: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        build.devices(Settings.load(None, {"gpu": spec}))


def test_targets_are_those_of_the_command_line_then_those_of_the_file() -> None:
    model = {"target": "builtin:detector", "lane": "fast", "version": "7"}
    given = {"targets": ["builtin:detector"], "models": {"face": model}}
    first, second = build.targets(Settings.load(None, given))
    assert (first.name, first.lane) == (None, None)
    assert (second.name, second.lane, second.version) == ("face", "fast", "7")
    with pytest.raises(SettingsError, match="nothing to serve"):
        build.targets(Settings.load(None, {}))
    with pytest.raises(SettingsError, match="builtin:none"):
        build.targets(Settings.load(None, {"targets": ["builtin:none"]}))
