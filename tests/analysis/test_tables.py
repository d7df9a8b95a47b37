"""CSV files as people have them."""

import pandas as pd
import pytest

from analysis import EvalsError, fit
from analysis.tables import from_runs, read_csv

PLAIN = "run,flops,loss\na,1e18,3.47\nb,4e18,3.18\nc,1.6e19,2.94\nd,6.4e19,2.74\n"


def write(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "evals.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_a_spreadsheets_csv_is_the_same_table(tmp_path):
    """Semicolons, decimal commas, a byte-order mark, CRLF, a blank after the separator."""
    plain = read_csv(write(tmp_path, PLAIN))
    excel = PLAIN.replace(",", "; ").replace(".", ",").replace("\n", "\r\n")
    read = read_csv(write(tmp_path, excel, "utf-8-sig"))
    pd.testing.assert_frame_equal(read, plain)
    assert fit(read).summary() == fit(plain).summary()


@pytest.mark.parametrize(
    ("text", "encoding", "code", "said"),
    [
        ("run;flops;loss\na;1.234,5;3,4\n", "utf-8", "ambiguous_number", "'1.234,5' in row 0"),
        ("", "utf-8", "empty", "is empty"),
        (PLAIN.replace("a,", "ä,"), "utf-16", "unreadable", "no UTF-8 text"),
        ("run,flops\na,1,2\nb,1,2,3\n", "utf-8", "unreadable", "is no CSV text"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path, text, encoding, code, said):
    with pytest.raises(EvalsError, match=said) as error:
        read_csv(write(tmp_path, text, encoding))
    assert error.value.code == code


def test_a_word_among_decimal_commas_is_named_by_fit(tmp_path):
    table = read_csv(write(tmp_path, "run;flops;loss\na;1e18;3,4\nb;4e18;oops\n"))
    with pytest.raises(EvalsError, match=r"loss is 'oops' \(str\) in row 1"):
        fit(table)


def test_public_run_tables_are_evals():
    table = pd.DataFrame({"run_id": ["a"], "final_loss": [3.0], "lr": [1e-3], "flops": [1e18]})
    assert list(from_runs(table)) == ["run", "loss", "peak_lr", "flops"]
    assert list(from_runs(table.assign(run=["b"]))) == ["run_id", "loss", "peak_lr", "flops", "run"]
