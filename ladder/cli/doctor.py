"""ladder doctor run FILE: compile a run's real programs, from shapes, without its devices or a weight."""

import argparse
import json
import subprocess
import sys

from ladder.accounting import device_bytes, forward_flops
from ladder.loading import load
from ladder.spec import RunSpec
from ladder.values import SpecError


def options(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="run")
    run = verbs.add_parser("run", help="lower and compile the step and the evaluation of one run")
    run.add_argument("file", help="a Python file that declares LADDER, e.g. experiments/marin_535b.py")
    run.add_argument("--run", required=True, metavar="NAME", help="which of its runs")
    run.add_argument("--devices", required=True, type=int, metavar="N", help="of its expert axis, virtual")
    run.add_argument("--json", action="store_true", help="one line of JSON")


def main(options: argparse.Namespace) -> int:
    from ladder.train.rehearsal import replica

    runs = dict(pair for rung in load(options.file).everything for pair in rung.runs)
    if options.run not in runs:
        raise SpecError(f"--run {options.run}: {options.file} has {', '.join(runs)}")
    share = replica(runs[options.run], options.devices)
    child = subprocess.run(
        [sys.executable, "-m", "ladder.train.rehearsal", str(options.devices)],
        input=runs[options.run].to_json(),
        text=True,
        stdout=subprocess.PIPE,
    )
    if child.returncode:
        print(f"ladder doctor: {options.run} does not compile, for the reason above", file=sys.stderr)
        return 1
    found = json.loads(child.stdout.splitlines()[-1])
    found |= {"rows": share.rows, "devices": options.devices, "step_flops": _step_flops(share)}
    found["expected"] = {"weights": device_bytes(share).weights, "optimizer": device_bytes(share).optimizer}
    print(json.dumps(found) if options.json else _text(options.run, found))
    return 0


def _step_flops(share: RunSpec) -> int:
    """Of one device, forward and backward, with the output head; recomputation not counted."""
    return 3 * forward_flops(share.model, lm_head=True) * share.batch_tokens // share.parallel.devices


def _text(name: str, found: dict) -> str:
    gb = lambda number: f"{number / 1e9:,.2f} GB"  # noqa: E731
    lines = [
        f"{name}: one replica's {found['rows']:,} rows on {found['devices']} virtual CPU devices, no weights "
        "allocated; bytes of each device",
        f"  weights          {gb(found['weights'])}, by accounting {gb(found['expected']['weights'])}",
        f"  optimizer state  {gb(found['optimizer'])}, by accounting {gb(found['expected']['optimizer'])}",
        f"  FLOPs of a step  {found['step_flops']:.3e}, forward and backward, recomputation not counted",
    ]
    for program, title in (("step", "training step"), ("eval", "dropless evaluation")):
        part = found[program]
        lines += [
            f"{title}: compiled in {part['compile_s']:.0f} s, and lowered for cuda in "
            f"{part['lower_cuda_s']:.0f} s",
            f"  arguments {gb(part['arguments'])}, new outputs {gb(part['outputs'])}, temporaries "
            f"{gb(part['temporaries'])} (CPU estimate)",
            *(
                f"  {kind:<18} {numbers['count']:>7,} calls, {gb(numbers['bytes'])} received"
                for kind, numbers in part["collectives"].items()
            ),
        ]
    return "\n".join([*lines, f"peak memory of the compiling process: {gb(found['peak_memory'])}"])
