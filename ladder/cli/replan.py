"""ladder replan SOURCE --forecast F: what is still open to a run, each choice with loss, band and cost."""

import argparse


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="as for watch: a store, a table, a .wandb file, or wandb:PROJECT/RUN")
    parser.add_argument("--forecast", required=True, metavar="F", help="the frozen forecast (JSON)")
    parser.add_argument("--run", metavar="RUN", help="of a store; without it the forecast's own run")
    parser.add_argument("--horizon", type=float, help="share of the tokens at which a shortened run ends")
    parser.add_argument("--decay-from", type=float, help="share of the run at which a re-timed decay begins")
    parser.add_argument("--price-per-flop", type=float, default=float("nan"))
    parser.add_argument("--json", action="store_true", help="one line of JSON an option")


def main(options: argparse.Namespace) -> int:
    from analysis import Forecast
    from analysis.monitor.sources import Stitch
    from analysis.replanning import replan
    from ladder.cli.watch import opened

    promise = Forecast.load(options.forecast)
    stitch = Stitch()
    entries = opened(options.source, options.run or promise.run).new()
    rows = [*stitch.add(entry for entry in entries if "kind" not in entry), *stitch.flush()]
    asked = {
        "shorten": {"horizon": options.horizon} if options.horizon is not None else {},
        "retime": {"decay_from": options.decay_from} if options.decay_from is not None else {},
    }
    evaluated = [row for row in rows if "eval_loss" in row]
    found = replan(promise, evaluated or rows, asked, options.price_per_flop)
    if options.json:
        print(found.to_json(orient="records", lines=True, double_precision=15), end="")
        return 0
    shown = found.drop(columns="assumes").to_string(index=False, float_format="{:.4g}".format)
    assumed = [f"{o} assumes: {text}" for o, text in zip(found["option"], found["assumes"], strict=True)]
    print("\n".join([shown, *assumed]))
    return 0
