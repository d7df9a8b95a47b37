"""Numbers as people read them in tables and sentences."""


def power(number: float) -> str:
    """2.65e19"""
    return f"{number:.2e}".replace("e+", "e")


def short(number: float) -> str:
    """59.9k, 1.6B"""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def gigabytes(number: float) -> str:
    """0.92 GB, 158 GB"""
    return f"{number / 1e9:.{2 if number < 1e10 else 0}f} GB"


def duration(seconds: float | None) -> str:
    """59 s, 2.1 min, 11.6 days; - where it is not known."""
    if seconds is None:
        return "-"
    for limit, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * limit:
            return f"{seconds / limit:.1f} {unit}"
    return f"{seconds:.0f} s"
