"""The `ladder` command: one module a verb, loaded when it is called."""

import argparse
import errno
import io
import json
import os
import sys
import warnings
from importlib import import_module

VERBS = {
    "plan": "what a ladder costs, before anything is trained",
    "run": "train the rungs, freeze the forecast, train the target watched, write the report",
    "status": "where every run of a store stands",
    "logs": "what a run has written so far, followed with -f",
    "stop": "ask a run, or all and their driver, to checkpoint and leave",
    "data": "write the token shards of a ladder into its store, once",
    "sync": "send what Weights & Biases lacks of a store; a second call finds nothing to send",
    "report": "write the page of a store again: one self-contained HTML file, and figures",
    "watch": "judge a run against its frozen forecast, as its rows come",
    "replan": "what is still open to a run: continue, shorten, re-time or restart, with loss and cost",
    "fit": "fit the scaling law of a table of evaluations, and forecast a target",
}


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 fine, 1 a run failed, 2 bad input, 3 the monitor ended in precursor or runaway."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: letters beyond the locale are no end
    try:
        return run_verb(parse(arguments if arguments is not None else sys.argv[1:]))
    except BrokenPipeError:  # `| head`: nobody reads on
        return _dropped()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"ladder: cannot write the output: {error.strerror}: make room for it", file=sys.stderr)
        return _dropped()


def _dropped() -> int:
    """Exit code 1, and nothing more is written, also not while exiting."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def parse(asked: list[str]) -> argparse.Namespace:
    """The verb and its options; only the named verb's module is loaded."""
    parser = argparse.ArgumentParser(
        prog="ladder", description="Declare a ladder of training runs, freeze a forecast, watch the full run."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    named = next((word for word in asked if not word.startswith("-")), None)
    for verb, text in VERBS.items():
        sub = verbs.add_parser(verb, help=text, description=text[0].upper() + text[1:] + ".")
        if verb == named:
            import_module(f"ladder.cli.{verb}").options(sub)
    return parser.parse_args(asked)


def run_verb(options: argparse.Namespace) -> int:
    """Call the verb; an error that a user can mend is one line on stderr and exit code 2 or 1. With --json it
    is a line of JSON too: error, exit_code, and what the error's `record` adds."""
    from ladder.cli.errors import explain

    line, record = "", {}
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
            code = import_module(f"ladder.cli.{options.verb}").main(options)
    except KeyboardInterrupt:
        line, code = "stopped; the same command goes on from here", 1
        print(line, file=sys.stderr)
    except Exception as error:
        line, code = explain(error)
        record = getattr(error, "record", {})
        print(f"ladder {options.verb}: {line}", file=sys.stderr)
    if line and getattr(options, "json", False):
        print(json.dumps({"error": line, "exit_code": code} | record))
    print(end="", flush=True)  # where a closed pipe shows
    return code
