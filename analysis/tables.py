"""Tables from files: CSV as pandas, editors and spreadsheets write it, and public tables of one row a run."""

from io import StringIO
from pathlib import Path

import pandas as pd
from pandas.api.types import is_numeric_dtype

from analysis.frame import NUMBERS, EvalsError

RUNS = {"run_id": "run", "final_loss": "loss", "lr": "peak_lr"}


def read_csv(path: str | Path) -> pd.DataFrame:
    """A CSV of evaluations as a frame of all its columns.

    Spreadsheets of half of Europe write semicolons, decimal commas and a byte-order mark: that is read, where
    the header has semicolons and no commas. A number of such a file that has both a point and a comma is
    refused, since 1.234,5 and 1,234.5 are two numbers. Raises EvalsError: unreadable, empty,
    ambiguous_number.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise EvalsError("unreadable", f"{path}: {error.strerror}: give a CSV file") from None
    except UnicodeDecodeError:
        raise EvalsError(
            "unreadable", f"{path} is no UTF-8 text: export it as CSV UTF-8 (a workbook is no CSV)"
        ) from None
    header = text.split("\n", 1)[0]
    if not header.strip():
        raise EvalsError("empty", f"{path} is empty: give a header and one row an evaluation")
    excel = ";" in header and "," not in header
    try:
        frame = pd.read_csv(StringIO(text), sep=";" if excel else ",", skipinitialspace=True)
    except ValueError as error:
        raise EvalsError("unreadable", f"{path} is no CSV text: {error}") from None
    frame.columns = frame.columns.str.strip()
    return _points_for_commas(frame, str(path)) if excel else frame


def _points_for_commas(frame: pd.DataFrame, path: str) -> pd.DataFrame:
    """Decimal commas of the numeric columns as points; other text stays as it is."""
    for name in (c for c in frame.columns if c in NUMBERS and not is_numeric_dtype(frame[c])):
        texts = frame[name].astype("string").str.strip()
        both = texts.str.contains(",", na=False) & texts.str.contains(".", regex=False, na=False)
        if both.any():
            row = int(both.to_numpy().argmax())
            raise EvalsError(
                "ambiguous_number",
                f"{path}: {name} is {str(texts.iloc[row])!r} in row {row}: a point and a comma in one "
                "number; export it without thousands separators",
            )
        texts = texts.str.replace(",", ".")
        numbers = pd.to_numeric(texts, errors="coerce")
        frame[name] = (
            numbers.astype(float) if (numbers.notna() | texts.isna()).all() else texts.astype(object)
        )
    return frame


def from_runs(table: pd.DataFrame) -> pd.DataFrame:
    """A table of one row a finished run (run_id, final_loss, lr, as public ladders publish them) as evals:
    run, loss, peak_lr; the other columns stay."""
    return table.rename(columns={old: new for old, new in RUNS.items() if new not in table.columns})
