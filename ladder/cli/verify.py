"""ladder verify FILE: check a frozen forecast's hash, compute it again from what it holds, and compare."""

import argparse
import json

CLOSE = 1e-6  # relative: numbers that agree so far are the same forecast, whatever the last digits


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="a frozen forecast, e.g. runs/laptop/forecast.json")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def main(options: argparse.Namespace) -> int:
    from analysis import Forecast

    frozen = Forecast.load(options.file)
    again = frozen.recomputed()
    apart = distance(frozen, again)
    said = {
        "sha256": frozen.sha256,
        "recomputed_sha256": again.sha256,
        "same": frozen.sha256 == again.sha256,
        "largest_relative_difference": apart,
        "versions": frozen.payload["versions"],
        "versions_now": again.payload["versions"],
    }
    agrees = said["same"] or apart <= CLOSE
    if options.json:
        print(json.dumps(said | {"verified": agrees}))
        return 0 if agrees else 1
    print(f"{frozen.run}: sha256 {frozen.sha256} is that of the file's content")
    if said["same"]:
        print("computed again from its own table: the same sha256")
    else:
        print(f"computed again: sha256 {again.sha256}; numbers differ by up to {apart:.2g} (relative)")
        if said["versions"] != said["versions_now"]:
            print(f"frozen by {said['versions']}, computed again by {said['versions_now']}")
    return 0 if agrees else 1


def distance(frozen, again) -> float:
    """The largest relative difference between the medians and bands of two forecasts; infinite where their
    points or levels differ."""
    import numpy as np

    one, two = (f.frame().drop(columns="run").to_numpy(float) for f in (frozen, again))
    if one.shape != two.shape or not np.array_equal(np.isnan(one), np.isnan(two)):
        return float("inf")
    return float(np.nanmax(np.abs(one - two) / np.maximum(np.abs(one), 1e-300)))
