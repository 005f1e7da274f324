"""What the service asks of a model.

``dims`` is cheap (an image's header, a text's length) and runs before admission; ``decode``, ``infer`` and ``encode``
run after the grant, in the engine's thread, before the lease ends. None of them runs on the event loop.
"""

from typing import Any, Protocol, runtime_checkable

from gpuwatch.storage.records import Dims

Payload = Any
"""What ``decode`` makes of a body and ``infer`` takes."""
Result = Any
"""What ``infer`` gives for one payload and ``encode`` turns into JSON."""
Json = Any
"""Plain data: what the client gets."""


class BadInput(ValueError):
    """The body is not what the model takes. The message is shown to the client; ``status`` is 400 or 422."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@runtime_checkable
class Model(Protocol):
    """One model. Optional attributes: ``version: str``, and ``price(dims) -> bytes`` where a price is declared."""

    name: str
    lane: str

    def load(self, device: str) -> None:
        """Put the weights on ``device`` (``cuda:0`` or ``cpu``)."""

    def dims(self, body: bytes, content_type: str) -> Dims:
        """State the request's dims from its raw body, cheaply. Raises `BadInput`."""

    def decode(self, body: bytes, content_type: str) -> Payload:
        """Decode the body. Raises `BadInput`."""

    def infer(self, batch: list[Payload]) -> list[Result]:
        """Run the network: one result per payload, in order."""

    def encode(self, result: Result) -> Json:
        """Turn one result into plain data."""


@runtime_checkable
class Priced(Protocol):
    """A model that declares what a request costs."""

    def price(self, dims: Dims) -> int:
        """Live peak bytes of one request at ``dims`` beyond the weights: an upper bound, inputs and outputs in."""
