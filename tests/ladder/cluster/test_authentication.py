"""How a local cluster's authentication is chosen. What the environment may hold is tested with the verbs."""

import os
import sys
import types

import pytest

from ladder import SpecError
from ladder.cluster.authentication import choose_authentication


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # restored afterwards; empty is as good as absent
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def test_a_cluster_has_a_token_of_its_own_and_a_second_one_may_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_authentication()
    token = os.environ["RAY_AUTH_TOKEN"]
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(token) == 64
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    choose_authentication()
    assert os.environ["RAY_AUTH_TOKEN"] == token


def test_ray_that_was_imported_without_a_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    with pytest.raises(SpecError, match="ray was imported before"):
        choose_authentication()
