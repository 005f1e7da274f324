"""What every test shares."""

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None)  # no timing assertions: a busy machine must not fail a property
settings.load_profile("house")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
