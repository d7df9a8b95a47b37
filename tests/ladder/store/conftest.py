"""A store on a folder and on an object store in memory; only on a folder where files are touched."""

import pytest

from ladder import Store
from tests.ladder.examples import LADDER


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    store = Store(tmp_path / "store" if request.param == "folder" else f"memory://{tmp_path.name}")
    store.create(LADDER)
    return store


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path)
    store.create(LADDER)
    return store
