"""The models that are served: loading them onto the cards, and answering one request with one of them.

Rules: whatever belongs to a model runs on a thread: its dims and price on a few threads in front of admission, all the
rest in the engine after the grant. Decoding, inference and encoding happen under the lease.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwatch.service.build import Target
from gpuwatch.service.dispatch import Dispatcher
from gpuwatch.service.engines.threads import ThreadEngine
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
        try:
            entry.dims, price_bytes = await self._front.call(lambda: _priced(served.any_replica, body, content_type))
        except BadInput as bad:
            self._requests.end(entry, Outcome.BAD_INPUT, bad.status, type(bad).__name__)
            raise Refused(Outcome.BAD_INPUT, str(bad), status=bad.status) from None
        except Exception as error:  # noqa: BLE001 - a model may raise anything; the request still gets its one outcome
            _log.exception("model %s cannot state the dims of request %s", served.name, entry.request_id)
            self._requests.end(entry, Outcome.MODEL_ERROR, 500, type(error).__name__)
            raise Refused(Outcome.MODEL_ERROR, f"{served.name} raised {type(error).__name__}.") from None
        entry.price_source = PriceSource.PRIOR if price_bytes is None else PriceSource.DECLARED
        entry.price_bytes = price_bytes or knobs.by_lane[entry.lane].default_price_bytes or None

        def work(gpu: int) -> bytes:
            model = served.replicas[gpu]
            (result,) = model.infer([model.decode(body, content_type)])
            return codec.dumps(model.encode(result)).encode()

        return await self._dispatcher.run(entry, work)


def _priced(model: Model, body: bytes, content_type: str) -> tuple[Dims, int | None]:
    dims = model.dims(body, content_type)
    return dims, model.price(dims) if isinstance(model, Priced) else None
