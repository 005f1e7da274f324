"""The models that are served: loading them onto the cards, and answering one request with one of them.

Rules: whatever belongs to a model runs on a thread: its dims and price on a few threads in front of admission, all the
rest in the engine after the grant. Decoding, inference and encoding happen under the lease.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from operator import index

from gpuwatch.service.build import Target
from gpuwatch.service.dispatch import Dispatcher, text_of
from gpuwatch.service.engines.threads import Failed, ThreadEngine
from gpuwatch.service.errors import Refused
from gpuwatch.service.gpu.base import Device
from gpuwatch.service.models.base import BadInput, Model, Priced
from gpuwatch.service.models.loading import CannotLoad
from gpuwatch.service.requests import Entry, Requests
from gpuwatch.storage import codec
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import Dims, Outcome, PriceSource
from gpuwatch.storage.state import ModelState

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Served:
    """One model on every card. ``weights_bytes`` is what loading left allocated, by card."""

    name: str
    version: str | None
    lane: str
    replicas: Mapping[int, Model]
    weights_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def any_replica(self) -> Model:
        """One of its instances: for what needs no card."""
        return next(iter(self.replicas.values()))

    def state(self) -> ModelState:
        """Describe it."""
        return ModelState(
            name=self.name,
            version=self.version,
            lane=self.lane,
            loaded=True,
            weights_bytes=max(self.weights_bytes.values(), default=0),
            price_source=PriceSource.DECLARED if isinstance(self.any_replica, Priced) else PriceSource.PRIOR,
        )


def load(targets: Sequence[Target], devices: Mapping[int, Device]) -> dict[str, Served]:
    """Make every model and put its weights on the cards. Blocks. Raises `CannotLoad`."""
    served: dict[str, Served] = {}
    for target in targets:
        model = _load_one(target, devices)
        if model.name in served:
            raise CannotLoad(f"two models are called {model.name}; name one of them in the configuration")
        served[model.name] = model
        _log.info("model %s is loaded: %s", model.name, model.weights_bytes)
    return served


def _load_one(target: Target, devices: Mapping[int, Device]) -> Served:
    replicas: dict[int, Model] = {}
    weights: dict[int, int] = {}
    for gpu, device in devices.items():
        model = target.make()
        before = device.read().allocated_bytes or 0
        try:
            with device.loading():
                model.load(device.torch_device)
        except Exception as error:
            raise CannotLoad(f"{model.name} failed to load: {type(error).__name__}: {error}") from error
        weights[gpu] = max(0, (device.read().allocated_bytes or 0) - before)
        replicas[gpu] = model
    return Served(
        name=target.name or model.name,
        version=target.version or getattr(model, "version", None),
        lane=target.lane or model.lane,
        replicas=replicas,
        weights_bytes=weights,
    )


class Answering:
    """Answers requests with the models of ``served``."""

    def __init__(
        self, served: Mapping[str, Served], *, front: ThreadEngine, dispatcher: Dispatcher, requests: Requests
    ) -> None:
        self.served = served
        self._front = front
        self._dispatcher = dispatcher
        self._requests = requests

    async def answer(self, served: Served, entry: Entry, body: bytes, content_type: str, knobs: Knobs) -> bytes:
        """Answer one request with JSON text; the entry has its outcome then. Raises `Refused`."""
        asked = await self._front.outcome(lambda: _priced(served.any_replica, body, content_type))
        if isinstance(asked, Failed):
            raise self._unpriced(served, entry, asked)
        entry.dims, price_bytes = asked.value
        entry.price_source = PriceSource.PRIOR if price_bytes is None else PriceSource.DECLARED
        entry.price_bytes = price_bytes or knobs.by_lane[entry.lane].default_price_bytes or None

        def work(gpu: int) -> bytes:
            model = served.replicas[gpu]
            (result,) = model.infer([model.decode(body, content_type)])
            return codec.dumps(model.encode(result)).encode()

        return await self._dispatcher.run(entry, work)

    def _unpriced(self, served: Served, entry: Entry, failed: Failed) -> Refused:
        """Give the entry its outcome where the model could not state dims and price."""
        error, kind = failed.error, type(failed.error).__name__
        if isinstance(error, BadInput):
            self._requests.end(entry, Outcome.BAD_INPUT, error.status, kind)
            return Refused(Outcome.BAD_INPUT, text_of(error), status=error.status)
        _log.error("model %s cannot price request %s\n%s", served.name, entry.request_id, failed.text)
        self._requests.end(entry, Outcome.MODEL_ERROR, 500, kind)
        return Refused(Outcome.MODEL_ERROR, f"{served.name} raised {kind}; the log has the traceback.")


def _priced(model: Model, body: bytes, content_type: str) -> tuple[Dims, int | None]:
    """Ask the model, and take nothing but whole numbers: what else it says must not get into the ledger's sums.

    Raises what the model raises, `TypeError` for what is no number, `ValueError` for a price below 0.
    """
    dims = {str(name): index(size) for name, size in model.dims(body, content_type).items()}
    if not isinstance(model, Priced):
        return dims, None
    price_bytes = ceil(model.price(dims))
    if price_bytes < 0:
        raise ValueError(f"{model.name} gave a price of {price_bytes} bytes")
    return dims, price_bytes
