"""Ray's authentication: a token of its own for every local cluster, or the one that the user has chosen."""

import os
import re
import secrets
import sys

from ladder.values import SpecError

MODES = ("token", "disabled")


def choose_authentication() -> None:
    """Set RAY_AUTH_MODE and RAY_AUTH_TOKEN where the environment does not; before ray is imported.

    Raises SpecError when it is too late for that, and for what the environment says and Ray cannot take: it
    would end this process without a word about a token that is no HTTP header, and trust everybody in a mode
    that it does not know.
    """
    if "ray" in sys.modules and not os.environ.get("RAY_AUTH_MODE"):
        raise SpecError(
            "ray was imported before a way to authenticate was chosen: set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN before the import, or leave the import to ladder"
        )
    for name, own in (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", secrets.token_hex(32))):
        if not os.environ.get(name):
            os.environ[name] = own  # of a token that is not given Ray keeps a file in HOME
    if (mode := os.environ["RAY_AUTH_MODE"]) not in MODES:
        raise SpecError(f"RAY_AUTH_MODE={mode!r} is not {' or '.join(MODES)}: unset it, or use token")
    if not re.fullmatch(r"[!-~]+", os.environ["RAY_AUTH_TOKEN"]):
        raise SpecError(
            "RAY_AUTH_TOKEN holds a blank, a line end or a letter beyond ASCII: unset it, or use the token "
            "alone"
        )
