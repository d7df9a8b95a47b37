"""Figures for papers: drawn from what a forecast, a fit and a back-test hold, PNG or SVG by name."""

import numpy as np
import pandas as pd
import pytest

from analysis import backtest, fit, forecast
from analysis.page import plots


@pytest.fixture(scope="module")
def rows():
    out = []
    for k, flops in enumerate((1e18, 4e18, 1.6e19, 6.4e19, 2.56e20)):
        for x in (0.05, 0.2, 0.5, 1.0):
            loss = (1.7 + 1.4 * (flops / 1e18) ** -0.15) * x**-0.05
            out.append({"run": f"r{k}", "flops": flops * x, "progress": x, "loss": loss})
    return pd.DataFrame(out)


def test_every_figure_is_drawn(rows, tmp_path):
    fitted = fit(rows)
    frozen = forecast(fitted, {"run": ["big"], "flops": [2.56e21]})
    landed = pd.DataFrame({"progress": [0.05, 0.2], "loss": [2.6, 2.5]})
    drawn = {
        "scaling.svg": plots.scaling_plot(frozen, landed=2.3),
        "trajectory.png": plots.trajectory_plot(frozen, landed),
        "residuals.svg": plots.residual_plot(fitted),
        "coverage.png": plots.coverage_plot(backtest(rows)),
    }
    for name, figure in drawn.items():
        plots.save(figure, tmp_path / "figures" / name)
        head = (tmp_path / "figures" / name).read_bytes()[:8]
        assert head.startswith(b"<?xml" if name.endswith("svg") else b"\x89PNG")


def test_the_band_drawn_is_the_forecasts(rows):
    frozen = forecast(fit(rows), {"run": ["big"], "flops": [2.56e21]})
    (axes,) = plots.trajectory_plot(frozen).axes
    median = next(line for line in axes.lines if line.get_label() == "median")
    assert np.allclose(median.get_ydata(), frozen.frame()["median"])
