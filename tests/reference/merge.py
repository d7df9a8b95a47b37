"""The merge of attempts, as slowly and obviously as possible: lives are played back one row at a time."""


def merged(attempts: list[tuple[int, int | None, list[dict]]]) -> list[dict]:
    """attempts: (number, resumed_from, rows). A life begins by forgetting all steps past its start, whoever
    wrote them before; rows that an older life still writes past that point never count."""
    attempts = sorted(attempts, key=lambda attempt: attempt[0])
    record: dict[int, dict] = {}
    for index, (number, resumed_from, rows) in enumerate(attempts):
        if resumed_from is not None:
            for step in list(record):
                if step > resumed_from:
                    del record[step]
        newer_starts = [start for _, start, _ in attempts[index + 1 :] if start is not None]
        own: dict[int, dict] = {}
        for row in rows:
            if all(row["step"] <= start for start in newer_starts):
                own[row["step"]] = {**own.get(row["step"], {}), **row, "attempt": number}
        for step, row in own.items():
            record[step] = row
    return [record[step] for step in sorted(record)]
