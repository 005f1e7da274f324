"""Loading models onto cards; how they answer is the inference face's test."""

import pytest
from service_fakes import MIB, FakeDevice, FakeModel
from service_rigs import targets_of

from gpuwatch.service.answering import load
from gpuwatch.service.build import Target
from gpuwatch.service.models.base import Model
from gpuwatch.service.models.loading import CannotLoad
from gpuwatch.storage.records import PriceSource


class Unpriced:
    """A model that declares no price."""

    name = "plain"
    lane = "image"

    def load(self, device: str) -> None: ...

    def dims(self, body: bytes, content_type: str) -> dict[str, int]:
        return {"bytes": len(body + content_type.encode())}

    def decode(self, body: bytes, content_type: str) -> bytes:
        return body + content_type.encode()

    def infer(self, batch: list[bytes]) -> list[bytes]:
        return batch

    def encode(self, result: bytes) -> str:
        return result.decode()


class Broken(FakeModel):
    def load(self, device: str) -> None:
        raise OSError(f"no weights for {device}")


def test_each_card_has_a_replica_and_its_weights_are_measured() -> None:
    cards = {0: FakeDevice(0), 1: FakeDevice(1)}
    served = load([Target(make=FakeModel)], cards)["echo"]
    assert served.replicas[0] is not served.replicas[1]
    assert served.weights_bytes == {0: MIB, 1: MIB}
    assert served.state().weights_bytes == MIB
    assert (served.state().price_source, served.state().version) == (PriceSource.DECLARED, "1")


def test_the_configuration_names_it_before_the_model_does() -> None:
    models: list[Model] = [Unpriced()]
    (found,) = load([Target(make=lambda: models[0], name="mine", version="9", lane="fast")], {0: FakeDevice()}).values()
    assert (found.name, found.version, found.lane) == ("mine", "9", "fast")
    assert found.state().price_source is PriceSource.PRIOR
    (plain,) = load(targets_of(models), {0: FakeDevice()}).values()
    assert (plain.name, plain.version, plain.lane) == ("plain", None, "image")


def test_what_fails_to_load_and_two_of_a_name_are_told() -> None:
    with pytest.raises(CannotLoad, match="echo failed to load: OSError: no weights for cpu"):
        load(targets_of([Broken()]), {0: FakeDevice()})
    with pytest.raises(CannotLoad, match="two models are called echo"):
        load(targets_of([FakeModel(), FakeModel()]), {0: FakeDevice()})
