"""Which exceptions are a user's to mend, and how they read on one line."""


def explain(error: Exception) -> tuple[str, int]:
    """(one line, exit code) of an error whose text explains itself; any other is raised again."""
    from analysis.frame import AnalysisError
    from ladder.corpus import CorpusError
    from ladder.store import StoreError
    from ladder.values import SpecError

    known = {
        SpecError: 2,
        StoreError: 2,
        CorpusError: 2,
        AnalysisError: 2,
    }
    for kind, code in known.items():
        if isinstance(error, kind):
            return " ".join(str(error).split()), code
    if type(error).__name__ in (
        "RunFailed",
        "RunStopped",
        "GateStopped",
        "MirrorError",
    ):  # not imported: they load much
        return str(error), getattr(error, "exit_code", 1)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", 2
    raise error
