"""ladder run FILE: the whole job, from corpus to report; run again, it goes on or skips what is done."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ladder.loading import load_module
from ladder.spec import Ladder
from ladder.values import SpecError

if TYPE_CHECKING:
    from ladder.cluster.driver import Result, Trained


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a Python file that declares LADDER, or has main(store, seed)")
    parser.add_argument("--store", metavar="DIR", help="where the record lives (default ./runs/NAME)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="move every run's seed by N")
    parser.add_argument(
        "--wandb",
        choices=["off", "offline", "online"],
        help="mirror the rows on W&B (default: what WANDB_MODE says, else offline: files in the store)",
    )
    parser.add_argument(
        "--no-gate",
        dest="gated",
        action="store_false",
        help="go on when a rung lands outside the band predicted for it; the store keeps that",
    )
    parser.add_argument("--json", action="store_true", help="progress on stderr, the result as the last line")


def main(options: argparse.Namespace) -> int:
    if options.seed < 0:
        raise SpecError(f"--seed {options.seed} is negative: use 0 or more")
    module = load_module(options.file)
    ladder = getattr(module, "LADDER", None)
    if isinstance(ladder, Ladder):
        return run(ladder.with_seed(options.seed), options)
    if callable(getattr(module, "main", None)):
        return module.main(store=options.store or f"runs/{Path(options.file).stem}", seed=options.seed) or 0
    raise SpecError(f"{options.file} has neither LADDER = Ladder(...) nor main(store, seed)")


def run(ladder: Ladder, options: argparse.Namespace) -> int:
    from ladder.cli.live import Live
    from ladder.cluster.authentication import choose_authentication
    from ladder.cluster.driver import Result, run_ladder
    from ladder.planning import plan
    from ladder.store import Store

    name = ladder.name if not options.seed else f"{ladder.name}-seed{options.seed}"
    store = Store(options.store or f"runs/{name}")
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    choose_authentication()
    store.create(ladder)  # before anything slow: a store of another ladder is refused at once
    planned = plan(ladder)
    say(planned)
    if reasons := planned.problems + planned.elsewhere:
        raise SpecError("; ".join(reasons))
    with Live(sys.stderr if options.json else sys.stdout) as live:
        result = run_ladder(
            ladder,
            store,
            _cluster,
            say=live.say,
            show=live.show,
            wandb=options.wandb,
            gated=options.gated,
        )
    if options.json:
        print(result.to_json())
    else:
        say(verdict(result) if isinstance(result, Result) else table(result))
    return 3 if isinstance(result, Result) and result.state in ("precursor", "runaway") else 0


def _cluster():
    from ladder.cluster.gang import RayCluster

    return RayCluster()


def verdict(result: "Result") -> str:
    """The outcome in words."""
    landed = f"target loss {result.target_loss:.4f} {result.unit}, forecast {result.median:.4f}"
    if result.lo90 is not None and result.hi90 is not None:
        half = (result.hi90 - result.lo90) / 2 / result.median
        beyond = "BELOW (better than promised)" if result.target_loss < result.lo90 else "ABOVE"
        where = "inside" if result.inside else beyond
        band = f"90 % band {result.lo90:.4f} to {result.hi90:.4f}, half-width {half:.2%}"
        landed += f" ({band}): {where} the band"
    outside = [gate["rung"] for gate in result.gates if gate["overruled"]]
    if outside:
        landed += f"\ngate: {', '.join(outside)} landed outside the band predicted for it; --no-gate"
    standing = "normal, no alarm stands" if result.state == "normal" else result.state
    return (
        f"{landed}, {result.target_loss / result.median - 1:+.2%} from the median\n"
        f"monitor: {standing}; forecast sha256 {result.forecast_sha256[:12]}\n"
        f"report: {result.report} ({result.wall_s:.0f} s)"
    )


def table(trained: "Trained") -> str:
    """The final losses of a sweep."""
    wide = max(len(run["run"]) for run in trained.runs)
    lines = [f"{'':<{wide}}  {'FLOPs':>8}  {'tokens':>8}  {'steps':>6}  loss, {trained.unit}"]
    for run in trained.runs:
        flops, tokens = f"{run['flops']:.2e}".replace("e+", "e"), f"{run['tokens'] / 1e6:.4g}M"
        lines.append(f"{run['run']:<{wide}}  {flops:>8}  {tokens:>8}  {run['steps']:>6,}  {run['loss']:.4f}")
    return "\n".join([*lines, f"report: {trained.report} ({trained.wall_s:.0f} s)"])
