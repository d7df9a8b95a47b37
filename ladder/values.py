"""Frozen, checked values: the base class, the types of their fields, and errors that say what to do."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
)


class SpecError(ValueError):
    """A declaration that cannot work. The text names the field, the value and the next step."""


class _Explained(type(BaseModel)):
    """Building a value by its class answers a mistake with a SpecError.

    Not in __init__: pydantic would then build nested values of a JSON text through it, in Python mode,
    where a strict tuple refuses JSON's lists.
    """

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*args, **fields)
        except ValidationError as error:
            raise SpecError(_explain(cls, error)) from None


class Value(BaseModel, metaclass=_Explained):
    """A frozen value. `replace` is the only way to a changed copy, and it validates again."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated like a new one. An unknown field is an error."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**(fields | changes))

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SpecError(_explain(cls, error)) from None


def _explain(cls: type, error: ValidationError) -> str:
    """Pydantic's findings as one line: type, field, what is wrong, the value given, the nearest name."""
    findings = []
    # a mistyped name comes first: the field that is then missing follows from it
    for item in sorted(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden"):
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "no such field" + _nearest(cls, item["loc"])
        elif item["type"] not in ("missing", "value_error"):
            message += f" (got {item['input']!r:.80})"
        findings.append(f"{cls.__name__}.{where}: {message}" if where else f"{cls.__name__}: {message}")
    return "; ".join(findings)


def _nearest(cls: Any, where: tuple[int | str, ...]) -> str:
    if len(where) != 1:
        return ""
    near = get_close_matches(str(where[0]), cls.model_fields, 1)
    return f", did you mean {near[0]}?" if near else f"; {cls.__name__} has {', '.join(cls.model_fields)}"


def _whole(value: Any) -> Any:
    """Let 1e9 stand for a count: an integral float becomes an exact int."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value


def _pairs(value: Any) -> Any:
    """A mapping becomes sorted pairs, so that the value is hashable and its JSON has one form."""
    if isinstance(value, Mapping):
        value = value.items()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        pairs = [tuple(pair) if isinstance(pair, list) else pair for pair in value]
        return tuple(sorted(pairs, key=repr))  # repr: what is no pair is for the validation to name
    return value


def _tuple(value: Any) -> Any:
    """Let a list stand for a tuple: a declaration reads as well with either."""
    return tuple(value) if isinstance(value, list) else value


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _named(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"{value!r:.80} is no name: it becomes a folder, so use 1-64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return value


Count = Annotated[int, BeforeValidator(_whole), Field(gt=0)]  # exact, positive
CountOrZero = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Many = BeforeValidator(_tuple)  # Annotated[tuple[X, ...], Many]
Name = Annotated[str, AfterValidator(_named)]
Weights = Annotated[tuple[tuple[str, PositiveFloat], ...], BeforeValidator(_pairs)]


def digest(value: Any) -> str:
    """sha256 of canonical JSON: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
