"""The prior predictive of a compute-law ladder, one ladder at a time, by the plainest means.

A slow twin of analysis.designs.simulate: plain Monte Carlo with rejection, a path of the integrated Wiener
process in small steps, a fixed-point iteration for a floor that is relative to the losses.
"""

import math


def ladder(rng, u, rungs, prior, unit):
    """Final losses of runs at u decades (0 for the smallest), of rungs numbered 0, 1, ...; one draw."""
    while True:
        g = rng.normal(prior["g"]["mean"], prior["g"]["sd"])
        s = prior["s"]["scale"] * math.sqrt(prior["s"]["nu"] / rng.chisquare(prior["s"]["nu"]))
        e = rng.normal(prior["E"][unit]["mean"], prior["E"][unit]["sd"])
        k = rng.normal(prior["K"]["mean"], prior["K"]["sd"])
        if not (prior["g"]["grid"][0] < g < prior["g"]["grid"][1] and e > 0):
            continue
        if not prior["s"]["grid"][0] < s < prior["s"]["grid"][1]:
            continue
        if prior["E"][unit]["scale"] == "lowest_loss":
            if e >= 1:
                continue
            E, before = 0.5, 0.0  # of the largest loss, which is 1
            while abs(E - before) > 1e-7:
                E, before = e * (E + (1 - E) * 10 ** (-g * max(u))), E
            K = 1 - E
            wanted = (3 * K - prior["K"]["mean"]) / prior["K"]["sd"]
            if rng.random() > math.exp(-0.5 * wanted**2):
                continue
        else:
            if not 0 < k < 3:
                continue
            E = e
            K = k * E / (3 - k)  # K = k (E + K) / 3
        break
    tau = prior["tau"]["values"][rng.integers(len(prior["tau"]["values"]))]
    bend = path(rng, [max(u) - x for x in u])
    trend = [E + K * 10 ** (-g * x) for x in u]
    scale = sum(trend) / len(trend)
    return [t + scale * (tau * bend[r] + s * rng.normal()) for t, r in zip(trend, rungs, strict=True)]


def path(rng, distances, step=0.01):
    """An integrated Wiener process, flat at 0, at each distance; a list by rung, farther rungs first."""
    where = sorted(set(distances), reverse=True)
    speed = place = at = 0.0
    found = {}
    for d in sorted(where):
        while at < d - 1e-12:
            dt = min(step, d - at)
            kick = rng.normal() * math.sqrt(dt)
            place += (speed + kick / 2) * dt
            speed += kick
            at += dt
        found[d] = place
    return [found[d] for d in where]
